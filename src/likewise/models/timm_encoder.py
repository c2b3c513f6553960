"""A network of the timm library as encoder, by name, with random or pretrained weights."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.files.detection import describe_pickle
from likewise.files.published import Published, find
from likewise.models.encoder import SizedEncoder, check_images
from likewise.models.weights import check_digest, digest_of
from likewise.models.wrapped import dry_run, shortened

Shapes = Mapping[str, torch.Size]
FILES = ("model.safetensors", "pytorch_model.bin")


@final
class Timm(SizedEncoder):
    """A network of the timm library without its classifier.

    The length of a feature vector comes from a dry run, since timm's `num_features` counts the channels of the last
    maps, and some networks have more after pooling.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data. Networks with a fixed image size,
            such as vision transformers, are created for this size.
        name: A name such as resnet18 or vit_tiny_patch16_224, with a tag if there are several sets of weights, such as
            resnet18.a1_in1k. `timm.list_models("*vit*")` finds names.
        pretrained: Start from the published weights, in the cache of the Hugging Face hub, on the hub, or in an
            installed package (`likewise[pretrained]`), and keep the mean and std of their training.
        stem: "model" is the network's own; "small" gives a ResNet-like network a new 3 × 3 convolution of stride 1 and
            no max-pool, for images below 64 pixels.
        checkpoint: A file of the network's published weights, .safetensors or .pth, instead of a download; a classifier
            in it is ignored.
        digest: The recorded digest of a run's initial weights; a warning is given if the loaded ones differ.

    Raises:
        ValueError: The input is not an image, timm has no such name, weights are not available or do not fit, the
            stem cannot be replaced, or the network is too deep for the images.

    Source:
        R. Wightman, PyTorch Image Models, https://github.com/huggingface/pytorch-image-models.

    Example:
        >>> encoder = Timm((3, 32, 32), "mobilenetv3_small_050")
        >>> encoder(torch.zeros(2, 3, 32, 32)).shape, encoder.feature_dim
        (torch.Size([2, 1024]), 1024)
    """

    rebuilt_with: ClassVar[dict[str, Any]] = {"pretrained": False, "checkpoint": None, "digest": None}

    def __init__(
        self,
        input_shape: tuple[int, ...],
        name: str,
        pretrained: bool = False,
        stem: Literal["model", "small"] = "model",
        checkpoint: str | None = None,
        *,
        digest: str | None = None,
    ) -> None:
        check_images("Timm", input_shape)
        super().__init__(input_shape)
        _check_name(name)
        if stem not in {"model", "small"}:
            raise ValueError(f"expected the stem model or small, got {stem}: choose one of them")
        if checkpoint is not None and not Path(checkpoint).is_file():
            raise ValueError(f"expected checkpoint to be a file of weights, got {checkpoint}: no such file")
        published = _find_published(name) if pretrained and checkpoint is None else None
        file = str(published.file) if published else checkpoint
        self.model = _make(name, self.input_shape, file, in_order=published is not None and published.packaged)
        if file is not None:
            self._take_statistics()
        configuration: Any = self.model.pretrained_cfg
        self.origin = f"{name} from {published}, {configuration['license']}" if published else checkpoint or ""
        self._digest = digest_of(self.model) if published else None
        check_digest(name, self._digest, digest)
        if stem == "small":
            _shrink_stem(self.model, name)
        self.to(memory_format=torch.channels_last)
        outputs = dry_run(self.model, self.input_shape, name)
        if outputs.ndim != 2 or not torch.isfinite(outputs).all():
            raise ValueError(
                f"expected finite features (N, D) from {name} for images {self.input_shape}, got "
                f"{tuple(outputs.shape)} or NaN or infinity: choose larger images or a shallower encoder"
            )
        self._feature_dim = outputs.shape[1]

    @property
    def recorded(self) -> dict[str, Any]:
        """The digest of the published weights, by which a repeated run checks that it has the same ones."""
        return {"digest": self._digest} if self._digest else {}

    def forward(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d"]:
        return self.model(self.standardized(inputs, torch.channels_last))

    def _take_statistics(self) -> None:
        """Set mean and std to those of the weights; if there are not three channels, to their averages."""
        self.observes = False
        configuration: Any = self.model.pretrained_cfg
        for buffer, key in ((self.mean, "mean"), (self.std, "std")):
            values = torch.tensor(configuration[key])
            buffer.copy_((values if len(values) == len(buffer) else values.mean()).view(-1, 1, 1))


def _check_name(name: str) -> None:
    import timm  # noqa: PLC0415 - timm is optional

    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        near = get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists them"
        raise ValueError(f"expected the name of a network that timm has, got {name}: {remedy}")
    tags = sorted(some.partition(".")[2] for some in timm.list_models(f"{architecture}.*", include_tags=True))
    if tag and tag not in tags:
        remedy = f"choose {', '.join(tags)}" if tags else "there are none, leave it out"
        raise ValueError(f"expected a tag of {architecture} that timm has, got {tag}: {remedy}")


def _make(name: str, input_shape: tuple[int, ...], file: str | None, *, in_order: bool = False) -> nn.Module:
    """Make the network, with the weights of a file if there is one, which must be exactly the network's."""
    if file is None:
        return _create(name, input_shape)
    objects = describe_pickle(file)
    if not objects and Path(file).suffix != ".safetensors" and Path(file).read_bytes()[:1] not in {b"P", b"\x80"}:
        objects = "a file of something else: give a .safetensors or .pth file"
    if objects:
        raise ValueError(f"expected weights of {name} in {file}, got {objects}")
    with _record_loads() as loads:
        try:
            source = {"state_dict": _renamed(name, file)} if in_order else {"file": file}
            made = _create(name, input_shape, source, f" with the weights in {file}")
        finally:
            for network, shapes in loads[-1:]:
                _check_fit(network, shapes, name, file)
    return made


@contextmanager
def _record_loads() -> Generator[list[tuple[nn.Module, Shapes]]]:
    """Record which weights timm loads into which network, by the network's names; timm only logs misfits."""
    modules: Any = nn.Module
    load = modules.load_state_dict
    loads: list[tuple[nn.Module, Shapes]] = []
    log = logging.getLogger("timm.models._builder")
    level = log.level

    def record(network: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        tensors = {key: tensor for key, tensor in state_dict.items() if isinstance(tensor, Tensor)}
        loads.append((network, {key: tensor.shape for key, tensor in tensors.items() if tensor.is_floating_point()}))
        return load(network, state_dict, *args, **kwargs)

    modules.load_state_dict = record
    log.setLevel(logging.ERROR)
    try:
        yield loads
    finally:
        modules.load_state_dict = load
        log.setLevel(level)


def _check_fit(network: nn.Module, shapes: Shapes, name: str, file: str) -> None:
    """Raise a ValueError unless a file has all parameters of a network, in its shapes, and no others of its parts."""
    expected = {key: value.shape for key, value in network.state_dict().items()}
    named = cast("Any", network.pretrained_cfg).get("classifier") or ()
    classifiers = (named,) if isinstance(named, str) else named
    parts = {key.partition(".")[0] for key in expected} - {name.partition(".")[0] for name in classifiers}
    missing = [key for key, _ in network.named_parameters() if key not in shapes]
    further = [key for key in shapes if key not in expected and key.partition(".")[0] in parts]
    other = [key for key in shapes if key in expected and shapes[key] != expected[key]]
    if missing or further or other:
        raise ValueError(
            f"expected weights of {name} in {file}, got {len(missing)} missing, {len(further)} too many and "
            f"{len(other)} of other shapes, such as {(*other, *missing, *further)[0]}: give a file of this network, or "
            "the name of theirs"
        )


def _create(
    name: str, input_shape: tuple[int, ...], weights: Mapping[str, Any] | None = None, context: str = ""
) -> nn.Module:
    import timm  # noqa: PLC0415

    configuration = timm.get_pretrained_cfg(name)
    fixed = configuration is not None and configuration.fixed_input_size
    size: dict[str, Any] = {"img_size": input_shape[1:]} if fixed else {}
    source: dict[str, Any] = {"pretrained": True, "pretrained_cfg_overlay": weights} if weights else {}
    try:
        return timm.create_model(name, num_classes=0, in_chans=input_shape[0], **size, **source)
    except Exception as error:
        raise ValueError(
            f"expected {name} to be made for images {input_shape}{context}, "
            f"got {type(error).__name__}: {shortened(str(error))}: choose other images or another network"
        ) from error


def _shrink_stem(model: Any, name: str) -> None:
    """Replace a ResNet's first convolution by a 3 × 3 one of stride 1, and remove its max-pool."""
    first = getattr(model, "conv1", None)
    if not isinstance(first, nn.Conv2d) or not isinstance(getattr(model, "maxpool", None), nn.Module):
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected a network with a ResNet's stem, conv1 and maxpool, got {name}: leave stem at model"
        )
    model.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, 1, 1, bias=first.bias is not None)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def _find_published(name: str) -> Published:
    import timm  # noqa: PLC0415 - timm is optional

    configuration = timm.get_pretrained_cfg(name)
    repository = configuration.hf_hub_id if configuration else None
    if not repository:
        url = configuration.url if configuration else None
        remedy = f"download {url} and give its path as checkpoint" if url else "leave out pretrained"
        raise ValueError(f"expected a network with weights on the Hugging Face hub, got {name}: {remedy}")
    try:
        return find(repository, FILES)
    except LookupError as error:
        raise ValueError(
            f"expected the weights of {name} from the Hugging Face hub, {repository}, got {error}, or give a file of "
            "weights as checkpoint"
        ) from error


def _renamed(name: str, file: str) -> dict[str, Tensor]:
    """Return a package's weights under timm's names; the file has other names, in the network's order."""
    import timm  # noqa: PLC0415

    with torch.device("meta"):
        expected = timm.create_model(name).state_dict()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    if [tensor.shape for tensor in expected.values()] != [tensor.shape for tensor in weights.values()]:
        raise ValueError(f"expected the weights of {name} in {file}, got other tensors: install another version")
    return dict(zip(expected, weights.values(), strict=True))
