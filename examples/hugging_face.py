"""Several labels for each text: data of `datasets`, a model of `transformers`, and MSC.

    pip install '.[hub,text]'
    python hugging_face.py

The texts are made up here and read from a JSON-lines file; the model is a tiny BERT with random weights, saved to a
folder and loaded from it. For your own, give `load_dataset` and `from_pretrained` other names or folders.

A text has one of twelve words for each of its subjects, among numbers that mean nothing: texts that share most words
need not share a subject. From the label sets the model learns which words matter, and which belong together. The mean
average precision on test texts says how well the nearest training texts tell the labels.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

import likewise as lw
from likewise.evaluation import KNN, Features
from likewise.memory import Prototypes

EPOCHS, BATCH = 6, 64
SUBJECTS = {
    "cooking": "oven flour recipe butter spice dough salad sauce soup knife grill pan",
    "football": "goal referee striker league penalty coach stadium defender pitch corner fans header",
    "music": "guitar melody concert drummer album chord singer rhythm violin stage choir opera",
    "weather": "rain storm cloud forecast wind snow thunder fog frost drought breeze hail",
    "money": "bank loan interest share market tax dollar budget debt profit price salary",
    "garden": "seed soil tulip hedge lawn compost bulb pruning bee shed weed rake",
}


def write_texts(path: Path, count: int) -> None:
    """Write texts with one or two subjects each as JSON lines."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            labels = draw.sample(list(SUBJECTS), draw.choice([1, 2]))
            words = [draw.choice(SUBJECTS[label].split()) for label in labels]
            words += [str(draw.randrange(300)) for _ in range(8)]
            draw.shuffle(words)
            file.write(json.dumps({"text": " ".join(words), "labels": labels}) + "\n")


def save_tiny_model(folder: Path, texts: list[str]) -> None:
    """Save a tokenizer trained on texts and a small BERT with random weights, as `from_pretrained` reads them."""
    words: Any = Tokenizer(WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator(texts, WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    size = words.get_vocab_size()
    tiny = BertConfig(
        vocab_size=size, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128
    )
    BertModel(tiny).save_pretrained(folder)


def label_sets(names: list[list[str]]) -> Tensor:
    """Return lists of subjects as label sets, (N, L), booleans."""
    return torch.tensor([[subject in labels for subject in SUBJECTS] for labels in names])


def mean_precision(vectors: dict[str, Tensor], labels: dict[str, Tensor]) -> float:
    """Return how well the nearest training texts tell the labels of test texts; validation chooses how many count."""
    parts = [Features(vectors[part], labels[part], tuple(SUBJECTS), part=part) for part in vectors]
    return next(score.value for score in KNN()(*parts).scores if score.metric.name == "mAP")


def train_and_compare(folder: Path) -> None:
    """Train with everything in one folder, and compare features with TF-IDF."""
    torch.manual_seed(0)
    write_texts(folder / "texts.jsonl", 900)
    data: Any = load_dataset("json", data_files=str(folder / "texts.jsonl"), cache_dir=str(folder), split="train")
    train, rest = data.train_test_split(test_size=0.4, seed=0).values()
    validation, test = rest.train_test_split(test_size=0.5, seed=0).values()
    parts = {"train": train[:], "validation": validation[:], "test": test[:]}
    save_tiny_model(folder / "model", parts["train"]["text"])
    tokenizer, model = (kind.from_pretrained(folder / "model") for kind in (AutoTokenizer, AutoModel))

    def encode(texts: list[str]) -> Tensor:
        """Return the mean of the token vectors of each text, (B, D)."""
        tokens = tokenizer(texts, padding=True, return_tensors="pt")
        inside = tokens["attention_mask"].unsqueeze(-1)
        return (model(**tokens).last_hidden_state * inside).sum(dim=1) / inside.sum(dim=1)

    prototypes = Prototypes(len(SUBJECTS), model.config.hidden_size)  # a learned vector for each label
    loss_of = lw.MSCLoss(temperature=0.1)
    optimizer = torch.optim.AdamW([*model.parameters(), *prototypes.parameters()], lr=2e-3)
    for epoch in range(EPOCHS):
        losses: list[float] = []
        model.train()
        for batch in train.shuffle(seed=epoch).iter(batch_size=BATCH):
            texts, labels = batch["text"], label_sets(batch["labels"])
            views = torch.stack([encode(texts), encode(texts)], dim=1)  # (B, 2, D): dropout makes the difference
            loss = loss_of(views, labels, prototypes())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: mean loss {sum(losses) / len(losses):.3f}")

    model.eval()
    weights: Any = TfidfVectorizer().fit(parts["train"]["text"])
    sets = {part: label_sets(rows["labels"]) for part, rows in parts.items()}
    tf_idf = {part: torch.from_numpy(weights.transform(rows["text"]).toarray()).float() for part, rows in parts.items()}
    with torch.no_grad():
        features = {part: encode(rows["text"]) for part, rows in parts.items()}
    print(f"mAP of nearest texts by TF-IDF: {mean_precision(tf_idf, sets):.3f}")
    print(f"mAP of nearest texts by features: {mean_precision(features, sets):.3f}")


def main() -> None:
    """Run in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        train_and_compare(Path(folder))


if __name__ == "__main__":
    main()
