"""A bag of token embeddings: the mean of what each token of a text stands for."""

from collections.abc import Iterable
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data.texts import PADDING
from likewise.models.encoder import check_sizes
from likewise.models.text_encoder import TextEncoder, check_dropout, mean_of_tokens
from likewise.models.word_pieces import word_pieces


@final
class BagOfTokens(TextEncoder):
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
        super().__init__(input_shape, length)
        check_sizes(width=width, vocabulary=vocabulary)
        check_dropout(dropout)
        self.vocabulary = vocabulary
        self.embeddings = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.embeddings.embedding_dim

    def trained(self, texts: Iterable[str]) -> Any:
        """Train a tokenizer of word pieces."""
        return word_pieces(texts, self.vocabulary)

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens."""
        return self.norm(mean_of_tokens(self.dropout(self.embeddings(inputs)), inputs))
