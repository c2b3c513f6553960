"""A tiny BERT in sentence-transformers' trainer learns that "a7" and "b7" mean the same, and "a7 b8" something else.

pip install . 'sentence-transformers[train]'
python sentence_transformers_trainer.py        # or: torchrun --nproc-per-node 2 sentence_transformers_trainer.py
"""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import likewise as lw
from likewise.integrations import ForSentences

WORDS = ["[PAD]", *(f"{language}{number}" for number in range(40) for language in "ab")]


def tiny_model() -> SentenceTransformer:
    """Return a model with random weights; SentenceTransformer("name") loads a real one."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(folder)
        tiny = BertConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        BertModel(tiny).save_pretrained(folder)
        return SentenceTransformer(folder, device="cpu" if not torch.cuda.is_available() else None)


def main() -> None:
    """Train, and print the loss of held-out texts before and after."""
    torch.manual_seed(0)
    meanings = [torch.randperm(40)[:4].tolist() for _ in range(640)]
    columns = {of: [" ".join(f"{of}{n}" for n in each) for each in meanings] for of in "ab"}
    columns["negative"] = [" ".join(f"b{n}" for n in [*each[:3], (each[3] + 1) % 40]) for each in meanings]
    train, rest = Dataset.from_dict(columns).train_test_split(64, seed=0).values()

    model = tiny_model()
    loss_of = lw.InfoNCELoss(temperature="learned", gather_distributed=True)
    loss_of = lw.Matryoshka(loss_of, (32, 8))  # of all features, and of the first 8
    loss = ForSentences(model, loss_of, chunk_size=16)  # 16 texts at a time
    how = SentenceTransformerTrainingArguments(
        "run", learning_rate=5e-3, per_device_train_batch_size=64, num_train_epochs=5, report_to="none",
        eval_on_start=True, use_cpu=not torch.cuda.is_available(), save_strategy="no",
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model, how, train_dataset=train, eval_dataset=rest, loss=loss)
    trainer.train()
    print(f"loss before: {trainer.state.log_history[0]['eval_loss']:.4f}, after: {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
