"""A language model of the transformers library as encoder, by name or folder."""

import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data.texts import MASK, PADDING
from likewise.models.text_encoder import TextEncoder, mean_of_tokens
from likewise.models.wrapped import shortened

FIRST = 2  # our number of a model's token 0, after padding and mask


class Special(TypedDict):
    """A model's special tokens: those before and after a text, padding, and mask."""

    before: list[int]
    after: list[int]
    padding: int
    mask: int


@final
class PretrainedTransformer(TextEncoder):
    """A model that transformers.AutoModel loads, with its tokenizer.

        f(x) = vector of the first token (CLS), or mean over the tokens

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        name: A model's name on the Hugging Face hub, such as roberta-base, or the folder that it was saved in.
        length: Tokens of a text that are read, those before and after it not counted.
        pooling: "first" or "mean".
        config: The model's configuration, for random weights instead of the published ones; a run records it.
        special: Its special tokens; a run records them.
        lora: Rank r of low-rank adapters W + 2 B A beside each linear layer, which are trained in place of the model;
            8 is usual. None: the model itself is trained.

    Raises:
        ValueError: The inputs are not texts, the model or its tokenizer can't be loaded, length is more than the model
            takes, or the rank is below 1.

    Source:
        T. Wolf et al., Transformers: State-of-the-Art Natural Language Processing, 2020; E. Hu et al., LoRA: Low-Rank
        Adaptation of Large Language Models, 2022, with α = 2r, by the peft library.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        name: str,
        length: int = 128,
        pooling: Literal["first", "mean"] = "first",
        *,
        config: dict[str, Any] | None = None,
        special: Special | None = None,
        lora: int | None = None,
    ) -> None:
        super().__init__(input_shape, length)
        if pooling not in {"first", "mean"}:
            raise ValueError(f"expected pooling first or mean, got {pooling}: choose one of them")
        self.name = name
        self.pooling = pooling
        self.special = special
        if config is None:
            self.model = _loaded(name, lambda library, place: library.AutoModel.from_pretrained(place))
        else:
            self.model = _loaded(name, lambda of, _: of.AutoModel.from_config(of.AutoConfig.for_model(**config)))
        if lora is not None:
            self.model = _adapted(self.model, lora)
        self.model.train()  # the library loads models for evaluation, without dropout

    @property
    def feature_dim(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def recorded(self) -> dict[str, Any]:
        """The configuration and the special tokens, with which a run rebuilds the model."""
        return {"config": self.model.config.to_dict(), "special": self.special}

    def trained(self, texts: Iterable[str]) -> Any:
        """Return the model's own tokenizer, which was trained elsewhere."""
        tokenizer = _loaded(self.name, lambda of, place: of.AutoTokenizer.from_pretrained(place, use_fast=True))
        bare, framed = (tokenizer("a", add_special_tokens=framed)["input_ids"] for framed in (False, True))
        place = next(start for start in range(len(framed)) if framed[start : start + len(bare)] == bare)
        known = (tokenizer.mask_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, 0)
        mask = next(token for token in known if token is not None)
        padding = tokenizer.pad_token_id or 0
        self.special = Special(before=framed[:place], after=framed[place + len(bare) :], padding=padding, mask=mask)
        longest = min(int(tokenizer.model_max_length), _positions(self.model.config)) - len(framed) + len(bare)
        if self.length > longest:
            raise ValueError(
                f"expected encoder.length of at most {longest}, which {self.name} takes, got {self.length}: lower it"
            )
        return tokenizer.backend_tokenizer

    def numbered(self, ids: list[int]) -> list[int]:
        return [token + FIRST for token in ids]

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        tokens, inside = self._framed(inputs)
        vectors: Tensor = self.model(input_ids=tokens, attention_mask=inside.long()).last_hidden_state
        return vectors[:, 0] if self.pooling == "first" else mean_of_tokens(vectors, inside.long())

    def _framed(self, inputs: Int[Tensor, "n t"]) -> tuple[Int[Tensor, "n s"], Tensor]:
        """Return the model's own tokens, with those before and after each text, and which aren't padding."""
        special = self.special
        if special is None:
            raise ValueError("expected a tokenizer, got none: call observe(Texts(training_strings)) first")
        before, after = (inputs.new_tensor(special[where]) for where in ("before", "after"))
        own = (inputs - FIRST).masked_fill(inputs == MASK, special["mask"])
        own = own.masked_fill(inputs == PADDING, special["padding"])
        count = len(inputs)
        blank = inputs.new_full((count, len(after)), special["padding"])
        tokens = torch.cat([before.expand(count, -1), own, blank], dim=1)
        ends = (inputs != PADDING).sum(dim=1, keepdim=True) + len(before)
        if len(after):
            places = ends + torch.arange(len(after), device=inputs.device)
            tokens.scatter_(1, places, after.expand(count, -1))
        inside = torch.arange(tokens.shape[1], device=inputs.device) < ends + len(after)
        return tokens, inside


def _adapted(model: Any, rank: int) -> Any:
    """Freeze a model, and put adapters beside its linear layers."""
    if rank < 1:
        raise ValueError(f"expected lora of rank 1 or more, got {rank}: 8 is usual")
    try:
        peft = import_module("peft")  # of the extra `text`
    except ImportError as error:
        raise ValueError("expected the peft library for lora, got none: pip install likewise[text]") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the two libraries' own
        return peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def _positions(config: Any) -> int:
    """Return how many tokens the model has positions for; RoBERTa's begin after its padding."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return 10**9
    return positions - (config.pad_token_id + 1 if config.model_type in {"roberta", "xlm-roberta", "camembert"} else 0)


def _loaded(name: str, load: Callable[[Any, str], Any]) -> Any:
    """Load something of a model, by the library and its name or folder; a line explains where that fails."""
    try:
        library = import_module("transformers")  # of the extra `text`
        library.utils.logging.disable_progress_bar()
        return load(library, str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name)
    except ImportError as error:
        raise ValueError(
            f"expected the transformers library for {name}, got {shortened(str(error))}: pip install likewise[text]"
        ) from error
    except Exception as error:
        raise ValueError(
            f"expected a model of transformers by name or folder, got {name}: {shortened(str(error))}: check the name, "
            "the folder, or the connection"
        ) from error
