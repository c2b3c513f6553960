"""A language model of the transformers library as encoder, by name or folder."""

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.data.texts import MASK, PADDING
from likewise.files.published import HUB, PACKAGES, find, folder_of
from likewise.instantiate import instantiate
from likewise.models.encoder import SizedEncoder, frozen
from likewise.models.text_encoder import TextEncoder, by_length, mean_of_tokens
from likewise.models.weights import check_digest, digest_of
from likewise.models.wrapped import shortened

FILES = ("model.safetensors", "pytorch_model.bin")
FIRST_TOKEN = 2  # our number of a model's token 0, after padding and mask
DEFAULT_LENGTH = 128  # tokens read of a text, if the model doesn't say
FOLLOWING_MODULES = {"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"}  # of sentence-transformers


class Special(TypedDict):
    """The special tokens of a model, before and after a text, for padding and mask; and the text of its prompt."""

    before: list[int]
    after: list[int]
    padding: int
    mask: int
    prompt: str
    prompt_length: int


@final
class PretrainedTransformer(TextEncoder, SizedEncoder):
    """A model that transformers.AutoModel loads, with its tokenizer, or one of sentence-transformers.

        f(x) = vector of the first token (CLS), or mean over the tokens, or what follows in sentence-transformers

    A model of sentence-transformers encodes as its own `encode` does: by its pooling, Dense and Normalize modules, with
    its length, lower case and prompt. Of an encoder-decoder model, only the encoder is used. Weights are float32.

    Args:
        input_shape: (), the shape of one text; the command fills it in.
        name: A model's name on the Hugging Face hub, such as roberta-base, or the folder of a saved model. It is looked
            for in the hub's cache, on the hub, and in an installed package (`likewise[pretrained]`).
        length: Tokens read of a text, not counting those before and after it. None: as many as a model of
            sentence-transformers reads, and 128 for other models.
        pooling: "first" or "mean". None: the modules of sentence-transformers, if there are any; else the first token
            if the tokenizer has a CLS, and the mean if it has none.
        prompt: The name of a prompt of a sentence-transformers model, such as query, which is put before every text.
            None: the model's default prompt, if it has one.
        config: The model's configuration, for random weights instead of the published ones; a run records it.
        special: Its special tokens and its prompt; a run records them.
        modules: The following modules of sentence-transformers, each a name and its options; a run records them.
        digest: The recorded digest of a run's initial weights; a warning is given if the loaded ones differ.
        lora: Rank r of low-rank adapters W + 2 B A beside each linear layer, which are trained in place of the model;
            8 is usual. None: the model itself is trained.

    Raises:
        ValueError: The inputs are not texts, the model or its tokenizer can't be loaded, modules of another kind follow
            it, it has no such prompt, length is more than it takes, or the rank is below 1.

    Source:
        T. Wolf et al., Transformers: State-of-the-Art Natural Language Processing, 2020; N. Reimers, I. Gurevych,
        Sentence-BERT, 2019; E. Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022, with α = 2r, by the
        peft library.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        name: str,
        length: int | None = None,
        pooling: Literal["first", "mean"] | None = None,
        *,
        prompt: str | None = None,
        config: dict[str, Any] | None = None,
        special: Special | None = None,
        modules: list[Any] | None = None,
        digest: str | None = None,
        lora: int | None = None,
    ) -> None:
        super().__init__(input_shape, DEFAULT_LENGTH if length is None else length)
        if pooling not in {None, "first", "mean"}:
            raise ValueError(f"expected pooling first or mean, got {pooling}: choose one of them")
        self.name = name
        self.pooling: str | None = pooling
        self.special = special
        self.prompt = "" if special is None else special["prompt"]
        self._requested, self._reading, self.origin, self._digest = (length, prompt), None, "", None
        if config is None:
            self.model, following, self._reading, self.origin = _load_published(name)
            self.following: Any = None if pooling else following
            self._digest = digest_of(self.model)
            check_digest(name, self._digest, digest)
        else:
            made = _load_by_library(
                name, lambda library, _: library.AutoModel.from_config(library.AutoConfig.for_model(**config))
            )
            self.model = _encoding(made)
            self.following = None if modules is None else _load_by_library(name, lambda *_: _make_modules(modules))
        self._feature_dim = int(self.model.config.hidden_size)
        if self.following is not None:
            with frozen(self):
                blank = torch.zeros(1, 1, self._feature_dim)
                self._feature_dim = self._apply_following(blank, torch.ones(1, 1)).shape[1]
        if lora is not None:
            self.model = _add_adapters(self.model, lora)
        self.train()  # the libraries load models for evaluation, without dropout

    @property
    def recorded(self) -> dict[str, Any]:
        """The configuration, special tokens and modules, with which a run rebuilds the model."""
        following = self.following and [[type(module).__name__, module.get_config_dict()] for module in self.following]
        read = {"special": self.special, "length": self.length, "pooling": self.pooling}
        return {"config": self.model.config.to_dict(), "modules": following, "digest": self._digest, **read}

    def trained(self, texts: Iterable[str]) -> Any:
        """Return the model's own tokenizer, which was trained elsewhere."""
        self._reading = self._reading or _load_published(self.name)[2]
        (tokenizer, prompts, usual, most), (length, prompt) = self._reading, self._requested
        if prompt is not None and prompt not in prompts:
            raise ValueError(f"expected a prompt of {self.name}, got {prompt}: it has {', '.join(prompts) or 'none'}")
        self.prompt = prompts.get(prompt or usual or "", "")
        bare, framed = (tokenizer("a", add_special_tokens=framed)["input_ids"] for framed in (False, True))
        offset = next(start for start in range(len(framed)) if framed[start : start + len(bare)] == bare)
        known = (tokenizer.mask_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, 0)
        self.special = Special(
            before=framed[:offset],
            after=framed[offset + len(bare) :],
            padding=tokenizer.pad_token_id or 0,
            mask=next(token for token in known if token is not None),
            prompt=self.prompt,
            prompt_length=offset + len(tokenizer(self.prompt, add_special_tokens=False)["input_ids"]),
        )
        longest = min(int(tokenizer.model_max_length), _positions(self.model.config)) - len(framed) + len(bare)
        self.length = min(most or longest, longest) if length is None else length
        if self.length > longest:
            raise ValueError(
                f"expected encoder.length of at most {longest}, which {self.name} takes, got {self.length}: lower it"
            )
        if self.following is None and self.pooling is None:
            self.pooling = "mean" if tokenizer.cls_token is None else "first"
        return tokenizer.backend_tokenizer

    def numbered(self, ids: list[int]) -> list[int]:
        return [token + FIRST_TOKEN for token in ids]

    def forward(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        # on a GPU a padded token costs less than another launch
        grouped = self.training and inputs.device.type == "cpu" and not torch.compiler.is_compiling()
        return by_length(self._vectors, inputs) if grouped else self._vectors(inputs)

    def _vectors(self, inputs: Int[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        tokens, inside = self._add_special(inputs)
        vectors: Tensor = self.model(input_ids=tokens, attention_mask=inside.long()).last_hidden_state
        if self.following is not None:
            return self._apply_following(vectors, inside.long())
        return mean_of_tokens(vectors, inside.long()) if self.pooling == "mean" else vectors[:, 0]

    def _apply_following(self, vectors: Float[Tensor, "n s d"], inside: Tensor) -> Tensor:
        features: dict[str, Any] = {"token_embeddings": vectors, "attention_mask": inside}
        if self.prompt and self.special is not None:  # which some pooling leaves out
            features["prompt_length"] = self.special["prompt_length"]
        return self.following(features)["sentence_embedding"]

    def _add_special(self, inputs: Int[Tensor, "n t"]) -> tuple[Int[Tensor, "n s"], Tensor]:
        """Return the model's own tokens, with those before and after each text, and a mask, False for padding."""
        special = self.special
        if special is None:
            raise ValueError("expected a tokenizer, got none: call observe(Texts(training_strings)) first")
        before, after = (inputs.new_tensor(special[where]) for where in ("before", "after"))
        ids = (inputs - FIRST_TOKEN).masked_fill(inputs == MASK, special["mask"])
        ids = ids.masked_fill(inputs == PADDING, special["padding"])
        count = inputs.shape[0]  # len() would fix it in an exported file
        blank = inputs.new_full((count, len(after)), special["padding"])
        tokens = torch.cat([before.expand(count, -1), ids, blank], dim=1)
        ends = (inputs != PADDING).sum(dim=1, keepdim=True) + len(before)
        if len(after):
            places = ends + torch.arange(len(after), device=inputs.device)
            tokens.scatter_(1, places, after.expand(count, -1))
        inside = torch.arange(tokens.shape[1], device=inputs.device) < ends + len(after)
        return tokens, inside


def _load_published(name: str) -> tuple[Any, Any, tuple[Any, dict[str, str], str | None, int | None], str]:
    """Load a model, its following modules, (tokenizer, prompts, default prompt, length), and its origin."""

    def load(library: Any, source: str) -> tuple[list[Any], Any]:
        if not library.utils.hub.has_file(source, "modules.json"):
            tokenizer = library.AutoTokenizer.from_pretrained(source, use_fast=True)
            return [library.AutoModel.from_pretrained(source)], (tokenizer, {}, None, DEFAULT_LENGTH)
        whole = import_module("sentence_transformers").SentenceTransformer(source, device="cpu")
        prompts = {prompt_name: text for prompt_name, text in whole.prompts.items() if text}
        return list(whole), (whole.tokenizer, prompts, whole.default_prompt_name, whole.max_seq_length)

    with _at_hand(name) as (source, origin):
        (model, *following), reading = _load_by_library(source, load)
    kinds = [type(module).__name__ for module in (model, *following)]
    if following and (kinds[:2] != ["Transformer", "Pooling"] or not FOLLOWING_MODULES.issuperset(kinds[1:])):
        allowed, got = ", ".join(sorted(FOLLOWING_MODULES)), ", ".join(kinds)
        raise ValueError(f"expected {name} to be Transformer, Pooling and others of {allowed}, got {got}: name another")
    network = model.auto_model if following else model
    return _encoding(network), nn.Sequential(*following) if following else None, reading, origin


@contextmanager
def _at_hand(name: str) -> Generator[tuple[str, str]]:
    """Yield a model's source for the libraries, a folder or its name on the hub, and its origin in words."""
    if (folder := Path(name).expanduser()).is_dir():
        yield str(folder), f"the folder {name}"
        return
    repository = next((known for known in PACKAGES if known.partition("/")[2] == name), name)
    try:
        published = find(repository, [f"{file}{more}" for more in ("", ".index.json") for file in FILES])
    except LookupError as error:
        raise ValueError(f"expected a model of transformers by name or folder, got {name}: {error}") from error
    with folder_of(published) as folder:
        whole = published.origin != HUB and (folder / "config.json").is_file()
        terms = f", {PACKAGES[repository].license}" if repository in PACKAGES else ""
        yield str(folder) if whole else repository, f"{name} from {published}{terms}"


def _encoding(model: Any) -> Any:
    """Return a model in float32; of an encoder-decoder model, only the encoder."""
    both = (hasattr(model, "encoder") and hasattr(model, "decoder")) or type(model).__name__.endswith("EncoderModel")
    return (model.get_encoder() if both else model).float()


def _make_modules(modules: list[Any]) -> Any:
    """Make modules of sentence-transformers, with random weights, from their names and options."""
    library, activation = import_module("sentence_transformers.sentence_transformer.modules"), "activation_function"
    made = list[nn.Module]()
    for class_name, config in modules:
        options = {
            name: instantiate({"class_path": value}) if name == activation else value for name, value in config.items()
        }
        made.append(getattr(library, class_name)(**options))
    return nn.Sequential(*made)


def _add_adapters(model: Any, rank: int) -> Any:
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


def _load_by_library(name: str, load: Callable[[Any, str], Any]) -> Any:
    """Load a part of a model by the library, from a name or folder; one line explains a failure."""
    try:
        library = import_module("transformers")  # of the extra `text`
        library.utils.logging.disable_progress_bar()
        return load(library, name)
    except Exception as error:
        remedy = "pip install likewise[text]" if isinstance(error, ImportError) else "check it, or the connection"
        raise ValueError(
            f"expected a model of transformers by name or folder, got {name}: {shortened(str(error))}: {remedy}"
        ) from error
