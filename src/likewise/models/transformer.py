"""A small transformer for texts, trained from nothing with a tokenizer of its own."""

from collections.abc import Iterable
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data.texts import PADDING
from likewise.models.encoder import check_sizes
from likewise.models.text_encoder import TextEncoder, check_dropout, mean_of_tokens
from likewise.models.word_pieces import word_pieces


@final
class Transformer(TextEncoder):
    """Encode texts by self-attention, and average over their tokens.

        f(x) = mean over tokens of LayerNorm(blocks(e_{x_t} + p_t)),   blocks with the norm first, GELU

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        width: Length of a token's vector, and of a feature vector.
        depth: Number of blocks.
        heads: Heads of attention in a block; they divide width.
        vocabulary: The largest number of tokens that the tokenizer learns from the training texts.
        length: Tokens of a text that are read.
        dropout: Probability that a number is left out in training.

    Raises:
        ValueError: The inputs are not texts, a size is below 1, heads do not divide width, or dropout is outside
            [0, 1).

    Memory:
        (vocabulary + length) · width + 12 · depth · width² parameters.

    Source:
        A. Vaswani et al., Attention Is All You Need, 2017; norm first: R. Xiong et al., On Layer Normalization in the
        Transformer Architecture, 2020.

    Example:
        >>> from likewise.data import Texts
        >>> encoder = Transformer((), width=16, depth=1, heads=2, vocabulary=100, length=32)
        >>> encoder.observe(Texts(["pull what is alike", "push what is not"]))
        >>> encoder.encode(Texts(["what is alike"])).shape
        torch.Size([1, 16])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        width: int = 128,
        depth: int = 2,
        heads: int = 4,
        *,
        vocabulary: int = 8000,
        length: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(input_shape, length)
        check_sizes(width=width, depth=depth, heads=heads, vocabulary=vocabulary)
        check_dropout(dropout)
        if width % heads:
            raise ValueError(f"expected heads that divide width {width}, got {heads}: 4 and 128 are usual")
        self.vocabulary = vocabulary
        self.embeddings = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.positions = nn.Embedding(length, width)
        for table in (self.embeddings, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.embeddings.embedding_dim

    def trained(self, texts: Iterable[str]) -> Any:
        """Train a tokenizer of word pieces."""
        return word_pieces(texts, self.vocabulary)

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens."""
        places = torch.arange(inputs.shape[1], device=inputs.device)
        vectors = self.dropout(self.embeddings(inputs) + self.positions(places))
        return mean_of_tokens(self.blocks(vectors, src_key_padding_mask=inputs == PADDING), inputs)
