"""Encoders of texts with their own tokenizers: the abstract class, and encoders trained from scratch."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data.lazy_inputs import LazyInputs
from likewise.data.texts import PADDING, Texts, TokenRows
from likewise.models.encoder import Encoder, Progress, SizedEncoder, check_sizes

CPU_BATCH, BATCH = 64, 256  # texts encoded at a time: a third faster than 256 on two cores with AMX
MIN_GROUP = 8  # texts of similar length encoded together
TEXT_BATCH = 1000  # texts whose tokens are held as Python numbers
SPECIAL_TOKENS = ["[PAD]", "[MASK]"]  # padding is 0, the mask 1


class TextEncoder(Encoder):
    """Abstract: an encoder of texts, from rows of tokens to feature vectors.

    `observe` makes the tokenizer from the training texts alone. The tokenizer is a buffer, its JSON as bytes, and is
    saved with the weights.

    Args:
        input_shape: (), the shape of one text.
        length: Tokens read of a text; longer texts are cut, and `tokenized` counts them.

    Attributes:
        prompt: The text put before every text on reading.
    """

    tokenizer: Tensor
    prompt: str = ""

    def __init__(self, input_shape: tuple[int, ...], length: int) -> None:
        if tuple(input_shape) != ():
            raise ValueError(
                f"{type(self).__name__} expected texts, input_shape (), got {tuple(input_shape)}: choose ConvNet or "
                "ResNet for images, MLP for vectors"
            )
        check_sizes(length=length)
        super().__init__((1,))
        self.input_shape = ()
        self.length = length
        self.register_buffer("tokenizer", torch.zeros(0, dtype=torch.uint8))

    @abstractmethod
    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        """Encode rows of tokens: 0 is padding, 1 the mask."""

    @abstractmethod
    def trained(self, texts: Iterable[str]) -> Any:
        """Return a tokenizer, of the `tokenizers` library, made from texts."""

    def observe(self, inputs: "Tensor | LazyInputs") -> None:
        """Make the tokenizer from the training texts.

        Raises:
            ValueError: The inputs are not texts, or there are none.
        """
        if not isinstance(inputs, Texts) or len(inputs) == 0:
            raise ValueError(f"expected training texts, got {type(inputs).__name__}: give Texts(strings)")
        content = self.trained(inputs.strings).to_str().encode()
        self.tokenizer = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.mean.device)

    def tokenized(self, texts: Texts) -> TokenRows:
        """Return the tokens of texts, each cut to `length`.

        Raises:
            ValueError: `observe` has made no tokenizer yet.
        """
        from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra `text`

        if len(self.tokenizer) == 0:
            raise ValueError("expected a tokenizer, got none: call observe(Texts(training_strings)) first")
        tokenizer: Any = Tokenizer.from_str(bytes(self.tokenizer.cpu().numpy()).decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        cut = 0

        def rows() -> Iterator[list[int]]:
            nonlocal cut
            for start in range(0, len(texts), TEXT_BATCH):
                some = [self.prompt + text for text in texts.strings[start : start + TEXT_BATCH]]
                for encoding in tokenizer.encode_batch(some, add_special_tokens=False):
                    ids: list[int] = encoding.ids
                    cut += len(ids) > self.length
                    yield self.numbered(ids[: self.length])

        tokens = TokenRows.of(rows())
        tokens.cut = cut
        return tokens

    def numbered(self, ids: list[int]) -> list[int]:
        """Return the tokens of a text, from the tokenizer's own numbers: 0 is padding, 1 the mask, others follow."""
        return ids

    @torch.no_grad()
    def encode(
        self,
        inputs: "Tensor | LazyInputs | Sequence[Any]",
        batch_size: int | None = None,
        *,
        progress: Progress | None = None,
    ) -> Float[Tensor, "n d"]:
        """Encode texts, or rows of tokens, in evaluation mode, without gradient; texts of similar length together.

        Args:
            inputs: Strings, `Texts`, `TokenRows`, or rows of tokens (N, T).
            batch_size: Number of texts encoded at a time. None: 64 on a CPU, else 256.
            progress: Wraps the iteration over batches, for example tqdm.

        Returns:
            Features (N, D), float32 on the CPU.

        Raises:
            ValueError: The inputs are of another type.
        """
        if isinstance(inputs, (list, tuple)) and all(isinstance(text, str) for text in inputs):
            inputs = Texts(inputs)
        if not isinstance(inputs, (Tensor, Texts, TokenRows)):
            type_name = type(inputs).__name__
            raise ValueError(f"expected texts, got {type_name}: pass a list of strings")  # noqa: TRY004 - bad input
        rows = self.tokenized(inputs) if isinstance(inputs, Texts) else inputs
        batch_size = batch_size or (CPU_BATCH if self.mean.device.type == "cpu" else BATCH)
        if not isinstance(rows, TokenRows):
            return super().encode(rows, batch_size, progress=progress)
        order = rows.lengths.argsort(stable=True)
        features = super().encode(rows.take(order), batch_size, progress=progress)
        return torch.empty_like(features).index_copy_(0, order, features)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}tokenizer")
        if saved is not None:
            self.tokenizer = torch.empty_like(saved, device=self.tokenizer.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def reads_texts(encoder: nn.Module) -> TypeGuard[TextEncoder]:
    """Tell whether an encoder reads texts, even inside the wrapper that adds a head to it."""
    return getattr(encoder, "input_shape", None) == ()


def by_length(encode: Callable[[Tensor], Tensor], inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
    """Encode rows of tokens in groups of similar length, with less padding: the shorter half, half of the rest, ...

    The number of groups depends on N alone, so several processes make equally many.
    """
    lengths = (inputs != PADDING).sum(dim=1)
    order = lengths.argsort(stable=True)
    parts = list[Tensor]()
    rest = order
    while len(rest) >= 2 * MIN_GROUP:
        some, rest = rest.tensor_split([len(rest) // 2])
        parts.append(some)
    outputs = [encode(inputs[some, : max(1, int(lengths[some[-1]]))]) for some in (*parts, rest)]
    return torch.cat(outputs)[order.argsort()]


def mean_of_tokens(vectors: Float[Tensor, "n t d"], tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
    """Average vectors over non-padding tokens; zero for a row of padding."""
    inside = (tokens != PADDING).to(vectors.dtype).unsqueeze(-1)
    return (vectors * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)


class _OwnTokens(TextEncoder, SizedEncoder):
    """Embeddings of the tokens of a tokenizer trained on the training texts."""

    def __init__(self, input_shape: tuple[int, ...], width: int, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__(input_shape, length)
        check_sizes(width=width, vocabulary=vocabulary)
        if not 0 <= dropout < 1:
            raise ValueError(f"expected dropout of at least 0 and below 1, got {dropout}: 0.1 is usual")
        self.vocabulary = vocabulary
        self.embeddings = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        self._feature_dim = width

    def trained(self, texts: Iterable[str]) -> Any:
        return word_pieces(texts, self.vocabulary)


@final
class BagOfTokens(_OwnTokens):
    """The average of the embeddings of a text's tokens, regardless of their order.

        f(x) = LayerNorm(1/T Σ_t dropout(e_{x_t}))

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        width: Length of an embedding, and of a feature vector.
        vocabulary: The largest number of tokens that the tokenizer learns from the training texts.
        length: Tokens read of a text.
        dropout: Probability of dropping a number of an embedding in training.

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
        return self.norm(mean_of_tokens(self.dropout(self.embeddings(inputs)), inputs))


@final
class Transformer(_OwnTokens):
    """A self-attention encoder of texts, averaged over their tokens.

        f(x) = mean over tokens of LayerNorm(blocks(e_{x_t} + p_t)),   blocks with the norm first, GELU

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        width: Length of a token's vector, and of a feature vector.
        depth: Number of blocks.
        heads: Attention heads in a block; their number divides width.
        vocabulary: The largest number of tokens that the tokenizer learns from the training texts.
        length: Tokens read of a text.
        dropout: Probability of dropping a number in training.

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
        places = torch.arange(inputs.shape[1], device=inputs.device)
        vectors = self.dropout(self.embeddings(inputs) + self.positions(places))
        return mean_of_tokens(self.blocks(vectors, src_key_padding_mask=inputs == PADDING), inputs)


def word_pieces(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a tokenizer of words in lower case, and parts of rarer ones, by byte-pair encoding (Sennrich et al., 2016).

    The vocabulary includes padding and the mask, which also stands for characters that the texts don't have.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415 - of an extra

    if vocabulary <= len(SPECIAL_TOKENS):
        raise ValueError(f"expected a vocabulary of at least 3 tokens, got {vocabulary}: 8,000 is usual")
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS[1]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    characters = vocabulary - len(SPECIAL_TOKENS)  # the most frequent; without a limit all of them become tokens
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL_TOKENS, limit_alphabet=characters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise ValueError("expected texts with words, got only empty ones: check the column of texts")
    return tokenizer
