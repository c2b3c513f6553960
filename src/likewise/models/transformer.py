"""Encoders of texts that are trained from nothing, with a tokenizer of their own: BagOfTokens and Transformer."""

from collections.abc import Iterable
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data.texts import PADDING
from likewise.models.encoder import check_sizes
from likewise.models.text_encoder import TextEncoder, mean_of_tokens

SPECIAL = ["[PAD]", "[MASK]"]  # padding is 0, the mask 1


class _OwnTokens(TextEncoder):
    """Embeddings of the tokens that a tokenizer has learned from the training texts."""

    def __init__(self, input_shape: tuple[int, ...], width: int, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__(input_shape, length)
        check_sizes(width=width, vocabulary=vocabulary)
        if not 0 <= dropout < 1:
            raise ValueError(f"expected dropout of at least 0 and below 1, got {dropout}: 0.1 is usual")
        self.vocabulary = vocabulary
        self.embeddings = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.embeddings.embedding_dim

    def trained(self, texts: Iterable[str]) -> Any:
        """Train a tokenizer of word pieces."""
        return word_pieces(texts, self.vocabulary)


@final
class BagOfTokens(_OwnTokens):
    """Average the embeddings of a text's tokens, whatever their order.

        f(x) = LayerNorm(1/T Σ_t dropout(e_{x_t}))

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        width: Length of an embedding, and of a feature vector.
        vocabulary: The largest number of tokens that the tokenizer learns from the training texts.
        length: Tokens of a text that are read.
        dropout: Probability that a number of an embedding is left out in training.

    Raises:
        ValueError: The inputs are not texts, a size is below 1, or dropout is outside [0, 1).

    Memory:
        vocabulary · width numbers.

    Example:
        >>> from likewise.data import Texts
        >>> encoder = BagOfTokens((), width=16, vocabulary=100)
        >>> encoder.observe(Texts(["pull what is alike", "push what is not"]))
        >>> encoder.encode(Texts(["what is alike"])).shape
        torch.Size([1, 16])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        width: int = 256,
        *,
        vocabulary: int = 8000,
        length: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(input_shape, width, vocabulary, length, dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens."""
        return self.norm(mean_of_tokens(self.dropout(self.embeddings(inputs)), inputs))


@final
class Transformer(_OwnTokens):
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
        check_sizes(depth=depth, heads=heads)
        super().__init__(input_shape, width, vocabulary, length, dropout)
        if width % heads:
            raise ValueError(f"expected heads that divide width {width}, got {heads}: 4 and 128 are usual")
        self.positions = nn.Embedding(length, width)
        for table in (self.embeddings, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens."""
        places = torch.arange(inputs.shape[1], device=inputs.device)
        vectors = self.dropout(self.embeddings(inputs) + self.positions(places))
        return mean_of_tokens(self.blocks(vectors, src_key_padding_mask=inputs == PADDING), inputs)


def word_pieces(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a tokenizer of lower-cased words, and parts of rarer ones, by byte-pair encoding (Sennrich et al., 2016).

    The vocabulary is the largest number of tokens, padding and mask included. The mask also stands for characters that
    the texts don't have.

    Example:
        >>> tokenizer = word_pieces(["pull what is alike", "push what is not"], vocabulary=60)
        >>> tokenizer.encode("What? is").tokens
        ['what', '[MASK]', 'is']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415 - of an extra

    if vocabulary <= len(SPECIAL):
        raise ValueError(f"expected a vocabulary of at least 3 tokens, got {vocabulary}: 8,000 is usual")
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    characters = vocabulary - len(SPECIAL)  # the most frequent; without a limit all of them become tokens
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, limit_alphabet=characters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL):
        raise ValueError("expected texts with words, got only empty ones: check the column of texts")
    return tokenizer
