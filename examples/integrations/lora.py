"""A tiny BERT learns that "a7" and "b7" mean the same, by low-rank additions to weights that stay as they are (LoRA).

pip install . transformers peft
python lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import BertConfig, BertModel

import likewise as lw

WORDS, LENGTH, BATCH, STEPS = 40, 4, 64, 150


def batch() -> Tensor:
    """Return token ids, (2 * BATCH, LENGTH): sentences, and then the same in the other language."""
    sentences = torch.rand(BATCH, WORDS).topk(LENGTH).indices
    return torch.cat([sentences, sentences + WORDS])


def main() -> None:
    """Train, and print the loss of a held-out batch before and after."""
    torch.manual_seed(0)
    tiny = BertConfig(vocab_size=2 * WORDS, hidden_size=64, num_hidden_layers=1, num_attention_heads=2)
    frozen = BertModel(tiny, add_pooling_layer=False)  # from_pretrained loads a real one
    encoder = get_peft_model(frozen, LoraConfig(r=8, target_modules=["query", "value", "word_embeddings"]))
    loss_of = lw.InfoNCELoss(temperature="learned", symmetric=True)
    learned = [weight for weight in encoder.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW([*learned, *loss_of.parameters()], lr=1e-2)

    def loss(tokens: Tensor) -> Tensor:
        vectors = encoder(input_ids=tokens).last_hidden_state.mean(dim=1)
        return loss_of(*vectors.chunk(2))

    test = batch()
    with torch.no_grad():
        before = loss(test)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(batch()).backward()
        optimizer.step()
    with torch.no_grad():
        print(f"loss before: {before:.4f}, after: {loss(test):.4f}")


if __name__ == "__main__":
    main()
