"""A tiny BERT in Hugging Face's Trainer learns that "a7" and "b7" mean the same: a module that returns its loss.

pip install . datasets 'transformers[torch]'
python hugging_face_trainer.py        # or: torchrun --nproc-per-node 2 hugging_face_trainer.py
"""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

import likewise as lw

WORDS = ["[PAD]", *(f"{language}{number}" for number in range(40) for language in "ab")]


class Pairs(nn.Module):
    """An encoder and a loss: the Trainer takes what is called "loss" from what forward returns."""

    def __init__(self) -> None:
        super().__init__()
        tiny = BertConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        self.encoder = BertModel(tiny, add_pooling_layer=False)
        self.loss = lw.InfoNCELoss(temperature="learned", gather_distributed=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *, return_loss: bool = True) -> dict[str, Tensor]:
        """Return the loss of sentences and their pairs, (B, 2, length); due to return_loss the Trainer evaluates it."""
        ids, mask = (of.flatten(0, 1) for of in (input_ids, attention_mask))
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]
        queries, keys = (hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True)).unflatten(0, (-1, 2)).unbind(dim=1)
        return {"loss": self.loss(queries, keys)} if return_loss else {}


def main() -> None:
    """Train, and print the loss of held-out pairs before and after."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    meanings = [torch.randperm(40)[: 3 + n % 3].tolist() for n in range(640)]
    data = Dataset.from_dict({of: [" ".join(f"{of}{n}" for n in each) for each in meanings] for of in "ab"})

    def collate(rows: list[dict[str, str]]) -> dict[str, Tensor]:
        tokens = tokenizer([text for row in rows for text in row.values()], padding=True, return_tensors="pt")
        return {name: tokens[name].unflatten(0, (-1, 2)) for name in ("input_ids", "attention_mask")}

    how = TrainingArguments(  # use_cpu: otherwise several processes on CPUs train apart
        "run", learning_rate=5e-3, remove_unused_columns=False, report_to="none", eval_on_start=True,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    train, rest = data.train_test_split(64, seed=0).values()
    trainer = Trainer(Pairs(), how, collate, train_dataset=train, eval_dataset=rest)
    trainer.train()
    print(f"loss before: {trainer.state.log_history[0]['eval_loss']:.4f}, after: {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
