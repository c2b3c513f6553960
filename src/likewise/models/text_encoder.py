"""The abstract text encoder: it owns its tokenizer, trained on the training texts, and encodes strings."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data.rows import Rows
from likewise.data.texts import PADDING, Texts, TokenRows
from likewise.models.encoder import Encoder, check_sizes

AT_ONCE = 1000  # texts whose tokens are held as Python numbers


class TextEncoder(Encoder):
    """Abstract: an encoder of texts, from rows of tokens to feature vectors.

    `observe` makes the tokenizer from the training texts, so that it has seen no others. It is a buffer, its JSON as
    bytes, and saved with the weights.

    Args:
        input_shape: (), the shape of one text.
        length: Tokens of a text that are read; a longer text is cut, and `tokenized` counts those.

    Raises:
        ValueError: The inputs are not texts, or length is below 1.
    """

    tokenizer: Tensor

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

    def observe(self, inputs: "Tensor | Rows") -> None:
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
            for start in range(0, len(texts), AT_ONCE):
                some = texts.strings[start : start + AT_ONCE]
                for found in tokenizer.encode_batch(some, add_special_tokens=False):
                    ids: list[int] = found.ids
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
        inputs: "Tensor | Rows | Sequence[Any]",
        batch_size: int | None = None,
        *,
        progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
    ) -> Float[Tensor, "n d"]:
        """Encode texts, or rows of tokens, in evaluation mode, without gradient; texts of similar length together.

        Args:
            inputs: Strings, `Texts`, `TokenRows`, or rows of tokens (N, T).
            batch_size: Number of texts encoded at a time. None: 256.
            progress: Wraps the iteration over batches, for example tqdm.

        Returns:
            Features (N, D), float32 on the CPU.

        Raises:
            ValueError: The inputs are none of these.
        """
        if isinstance(inputs, (list, tuple)) and all(isinstance(one, str) for one in inputs):
            inputs = Texts(inputs)
        if not isinstance(inputs, (Tensor, Texts, TokenRows)):
            given = type(inputs).__name__
            raise ValueError(f"expected texts, got {given}: pass a list of strings")  # noqa: TRY004 - bad input
        rows = self.tokenized(inputs) if isinstance(inputs, Texts) else inputs
        batch_size = 256 if batch_size is None else batch_size
        if not isinstance(rows, TokenRows):
            return super().encode(rows, batch_size, progress=progress)
        order = rows.lengths.argsort(stable=True)
        features = super().encode(rows.take(order), batch_size, progress=progress)
        return torch.empty_like(features).index_copy_(0, order, features)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Make room for a tokenizer of another length."""
        saved = state_dict.get(f"{prefix}tokenizer")
        if saved is not None:
            self.tokenizer = torch.empty_like(saved, device=self.tokenizer.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def mean_of_tokens(vectors: Float[Tensor, "n t d"], tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
    """Average vectors over tokens that are not padding; zero for a row of padding."""
    inside = (tokens != PADDING).to(vectors.dtype).unsqueeze(-1)
    return (vectors * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)
