"""Batches: the samples of each step, as views made on the training device, or as episodes of few-shot learning."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, NamedTuple, NotRequired, TypedDict, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from likewise.data.augmentation import Augmentation, Draw, usual_augmentation
from likewise.data.episode_sampler import EpisodeSampler, EpisodeShape, Mix, draw_mix, fitted, patched
from likewise.data.image_files import Crops
from likewise.data.lazy_inputs import readable, unreadable
from likewise.data.samplers import Sampler, Shuffled
from likewise.data.samples import Samples
from likewise.data.texts import Texts
from likewise.instantiate import Described, describe, spec_of

FIT_SAMPLES = 4096  # samples used to fit an augmentation
OBSERVED_INPUTS, SHOWN_INPUTS = 2048, 16  # inputs read for an encoder that computes their mean, and for any other
MIXING, COUNTERPARTS, NEGATIVES = 1, 3, 4  # purposes of a step's random numbers


class LocalBatch(NamedTuple):
    """The share of a process in the global batch, and the seed of the step's random numbers."""

    seed: int
    """Seed of this step, the same on every process."""
    samples: int
    """Number of samples in the global batch, B."""
    first: int = 0
    """Position of the first sample held here."""

    @classmethod
    def of(cls, batch: "Batch") -> "LocalBatch":
        """Return the share of a batch; a batch without one is the global batch, with a random seed."""
        return batch.get("share") or cls(int(torch.randint(2**62, ())), len(batch["inputs"]))

    def draw(self, views: int, held: int, device: torch.device) -> Draw:
        """Return the random numbers for V views of each sample held here, sample by sample."""
        rows = slice(self.first * views, (self.first + held) * views)
        return Draw(self.seed, self.samples * views, rows, device)


class Batch(TypedDict):
    """The input of a training step.

    Attributes:
        inputs: Views, (B, V, ...); before the views are made, (B, ...).
        sample_index: Each sample's row in the training part, (B,).
        labels: Classes (B,) or label sets (B, L); absent if the data has none.
        share: The part of the global batch held here, for seeding.
        cropped: Whether `inputs`, (B, V, ...), are crops of whole images, the first step of views.
        episodes: The shape of the episodes, if the samples form some.
        mix: The boxes of the episodes' queries that come from other queries, if any.
        counterparts: The other side of pairs: the counterpart of each sample, (B, ...).
        alike: Numbers, (B,), equal for pairs that must not be pushed apart; absent if all differ.
        negatives: Hard negatives of each sample, (B, K, ...), if the data has some.
        negative_alike: Numbers as in `alike` for the negatives, (B, K), -1 for one that is no counterpart.
    """

    inputs: Shaped[Tensor, "b ..."]
    sample_index: Int[Tensor, " b"]
    labels: NotRequired[Tensor]
    share: NotRequired[LocalBatch]
    cropped: NotRequired[bool]
    episodes: NotRequired[EpisodeShape]
    mix: NotRequired[Mix]
    counterparts: NotRequired[Shaped[Tensor, "b ..."]]
    alike: NotRequired[Int[Tensor, " b"]]
    negatives: NotRequired[Shaped[Tensor, "b k ..."]]
    negative_alike: NotRequired[Int[Tensor, "b k"]]


class Batches(Described, ABC):
    """Abstract: a way to form batches of samples.

    Attributes:
        batch_size: Samples per batch over all processes, B.
        together: Number of consecutive samples that belong together, as in an episode; the replacement of an unreadable
            one is of the same class. None: each is independent.
        negatives: Number of hard negatives drawn for each sample, for pairs that have some.
    """

    batch_size: int
    together: int | None = None
    negatives: int = 1

    __repr__ = describe

    @abstractmethod
    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        """Return the rows of every batch of an epoch. The same arguments give the same rows."""

    @abstractmethod
    def on_device(self, batch: Batch) -> Batch:
        """Turn a batch of samples into the input of a training step, on the batch's device."""

    def fit(self, samples: Samples) -> None:
        """Fit to the training part, once before training."""

    def suit(self, loss: str, arguments: Collection[str]) -> None:
        """Adapt to a loss, given its name and its forward's arguments, or refuse it; called before training."""

    def crops(self, samples: Samples) -> Crops | None:
        """Return the crops to take of images while they are decoded; None: images are read whole."""
        del samples
        return None

    @property
    def recorded(self) -> dict[str, Any]:
        """Arguments chosen by `suit` and `fit`, by name, for the record of a run."""
        return {}


@final
class Views(Batches):
    """Views of every sample: B samples, each augmented V times. The original is not one of the views.

    Args:
        views: Views per sample, V. Losses without labels need two or more. None: 2; for pairs 1 of each side.
        batch_size: Samples per batch over all processes, B. A smaller training part is one batch.
        sampler: The order of samples in batches. None: Shuffled.
        augmentation: The change that makes a view. None: SimCLRViews for images with three channels, in pairs
            RandomResizedCrop; RandomAffine for other images, FeatureDropout for vectors, TokenDropout for texts.
        counterpart_augmentation: The change of the other side of pairs. None: chosen as for `augmentation`.
        negatives: Hard negatives drawn for each sample in a step, for pairs that have some; they repeat if a sample has
            fewer, and come from the whole training part if it has none.

    Raises:
        ValueError: views or negatives is below 1, or batch_size is below 2; or several views of pairs are requested.

    Memory:
        B·V inputs, as floats.

    Example:
        >>> samples = Samples(torch.rand(8, 1, 6, 6))
        >>> batches = Views(batch_size=4)
        >>> batches.fit(samples)
        >>> batches.on_device(Batch(inputs=samples.inputs[:4], sample_index=torch.arange(4)))["inputs"].shape
        torch.Size([4, 2, 1, 6, 6])
    """

    def __init__(
        self,
        views: int | None = None,
        batch_size: int = 128,
        sampler: Sampler | None = None,
        augmentation: Augmentation | None = None,
        *,
        counterpart_augmentation: Augmentation | None = None,
        negatives: int = 1,
    ) -> None:
        if views is not None and views < 1:
            raise ValueError(f"expected views of at least 1, got {views}: contrast needs 2 without labels")
        if batch_size < 2:
            raise ValueError(f"expected batch_size of at least 2, got {batch_size}")
        if negatives < 1:
            raise ValueError(f"expected negatives of at least 1, got {negatives}")
        self.views = 2 if views is None else views
        self._views_given = views is not None
        parts = {"sampler": sampler, "augmentation": augmentation, "counterpart_augmentation": counterpart_augmentation}
        self._open = [name for name, part in parts.items() if part is None]
        self.batch_size = batch_size
        self.sampler = Shuffled() if sampler is None else sampler
        self.augmentation, self.counterpart_augmentation = augmentation, counterpart_augmentation
        self.negatives = negatives

    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        return self.sampler.order(samples, self.batch_size, seed=seed, epoch=epoch)

    def fit(self, samples: Samples) -> None:
        """Choose an augmentation if none was given, and fit it to some of the training part."""
        self.augmentation = _fitted(self.augmentation, samples, described=samples.counterparts is not None)
        if self.negatives > 1 and samples.negatives is None:
            remedy = "name their column, --data.negatives, or leave out --batches.negatives"
            raise ValueError(f"expected pairs with {self.negatives} hard negatives each, got none: {remedy}")
        if samples.counterparts is None:
            return
        if self._views_given and self.views > 1:
            raise ValueError(f"expected one view of each side of pairs, got {self.views}: leave out --batches.views")
        self.views = 1
        self.counterpart_augmentation = _fitted(self.counterpart_augmentation, samples.counterparts, described=True)

    @property
    def recorded(self) -> dict[str, Any]:
        made = {name: getattr(self, name) for name in self._open}
        return {"views": self.views} | {name: spec_of(part) for name, part in made.items() if part is not None}

    def crops(self, samples: Samples) -> Crops | None:
        return Crops.of(self.augmentation, self.views, samples.inputs)

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch with V views of each input, (B, V, ...); for pairs also of each counterpart and negative."""
        ready, share = batch.copy(), LocalBatch.of(batch)
        made = _rest_of_views if batch.get("cropped", False) else _views_of
        ready["inputs"] = made(self.augmentation, batch["inputs"], self.views, share)
        if "counterparts" in batch:
            side_share = share._replace(seed=derive_seed(share.seed, COUNTERPARTS))
            ready["counterparts"] = _views_of(self.counterpart_augmentation, batch["counterparts"], 1, side_share)[:, 0]
        if "negatives" in batch:
            side_share, negatives = share._replace(seed=derive_seed(share.seed, NEGATIVES)), batch["negatives"]
            count = negatives.shape[1]
            side_share = side_share._replace(samples=side_share.samples * count, first=side_share.first * count)
            views = _views_of(self.counterpart_augmentation, negatives.flatten(0, 1), 1, side_share)
            ready["negatives"] = views[:, 0].unflatten(0, negatives.shape[:2])
        return ready


def _views_of(
    augmentation: Augmentation | None, inputs: Tensor, views: int, share: LocalBatch
) -> Shaped[Tensor, "b v ..."]:
    if augmentation is None:
        raise ValueError("expected an augmentation, got none before fit, which chooses one: call fit(samples)")
    repeated = inputs.repeat_interleave(views, dim=0)
    return augmentation(repeated, share.draw(views, len(inputs), inputs.device)).unflatten(0, (len(inputs), views))


def _rest_of_views(augmentation: Augmentation | None, crops: Tensor, views: int, share: LocalBatch) -> Tensor:
    rest = None if augmentation is None else augmentation.split()[1]
    made = crops.flatten(0, 1) / 255
    if rest is not None:
        made = rest(made, share.draw(views, len(crops), crops.device))
    return made.unflatten(0, crops.shape[:2])


def _fitted(option: Augmentation | None, samples: Samples, *, described: bool) -> Augmentation:
    augmentation = usual_augmentation(samples.input_shape, described=described) if option is None else option
    fit_augmentation(augmentation, samples)
    return augmentation


def fit_augmentation(augmentation: Augmentation, samples: Samples) -> None:
    """Fit an augmentation to some of the training part, and try it on one."""
    some = some_inputs(samples, FIT_SAMPLES if augmentation.needs_fit else SHOWN_INPUTS)
    augmentation.fit(some)
    augmentation(some[:1], Draw(0, rows=1))


def some_inputs(samples: Samples, count: int) -> Tensor:
    """Return at most `count` inputs, evenly spread over the samples; raise a ValueError if none can be read.

    Example:
        >>> some_inputs(Samples(torch.arange(10.0).unsqueeze(1)), 3).flatten().tolist()
        [0.0, 4.0, 9.0]
    """
    rows = torch.linspace(0, max(len(samples) - 1, 0), min(count, len(samples)), dtype=torch.float64).long()
    inputs = samples.inputs[rows]
    lost = unreadable(samples.inputs, rows)
    if lost and len(lost) == len(rows) < min(OBSERVED_INPUTS, len(samples)):
        return some_inputs(samples, OBSERVED_INPUTS)
    if lost and len(lost) == len(rows):
        raise ValueError(f"expected images, got {len(rows)} that cannot be read, the first {lost[0].name}: check them")
    return inputs[readable(samples.inputs, rows)] if lost else inputs


def inputs_for_encoder(samples: Samples, *, observed: bool) -> Tensor | Texts:
    """Return the inputs for the construction of an encoder: all if they are in memory, else some that are read.

    Args:
        samples: The training part.
        observed: Whether the encoder computes their mean and standard deviation: 2,048 are read if so, otherwise 16.
    """
    if isinstance(samples.inputs, Tensor | Texts):
        return samples.inputs
    return some_inputs(samples, OBSERVED_INPUTS if observed else SHOWN_INPUTS)


def derive_seed(*numbers: int) -> int:
    """Hash numbers to a seed below 2^63; different numbers give different seeds.

    Example:
        >>> derive_seed(0, 1) == derive_seed(1, 0)
        False
    """
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@final
class Episodes(Batches):
    """Episodes: from some classes a few samples to learn from, the support, and others to classify, the queries.

    A batch is the samples of several episodes, (E, N, K + Q) flattened, with the support of each class first. Classes
    are distinct within an episode, and samples within a class; episodes may share both.

    Args:
        ways: Classes per episode, N. None: 5, or all if there are fewer.
        shots: Support samples per class, K.
        queries: Query samples per class, Q. None: 15, or as many as every class has beside its shots.
        episodes: Episodes per batch over all processes, E.
        steps: Batches per epoch. None: as many as the samples suffice for, at least one.
        mix: Whether a box of each query comes from another query of its episode, as in InfoPatch; see `Mix`. A mixed
            query has no single class. None: no, except in the command for losses that read `cell_labels`.
        augmentation: The change of every sample, support or query, before its use. None: no change.

    Raises:
        ValueError: A size is below 1, there are fewer classes than ways, a class has too few samples, or samples don't
            have one class each.

    Memory:
        A batch of inputs, and another one while queries are mixed.

    Example:
        >>> samples = Samples(torch.rand(60, 1, 8, 8), torch.arange(60) % 6, tuple("abcdef"))
        >>> Episodes(ways=5, shots=1, queries=3, episodes=2).order(samples, seed=0, epoch=0).shape
        torch.Size([1, 40])
    """

    def __init__(
        self,
        ways: int | None = None,
        shots: int = 1,
        queries: int | None = None,
        episodes: int = 4,
        steps: int | None = None,
        *,
        mix: bool | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._given = {"ways": ways, "queries": queries}
        self.shape = self.wanted = EpisodeShape.usual(episodes, ways, shots, queries)
        self.shape.check()
        if steps is not None and steps < 1:
            raise ValueError(f"expected steps of at least 1 batch an epoch, got {steps}")
        self.together = self.shape.samples
        self.batch_size = episodes * self.together
        self.steps, self.mix, self.augmentation = steps, mix, augmentation

    def suit(self, loss: str, arguments: Collection[str]) -> None:
        """Mix queries for losses of cells, unless `mix` is set; refuse it for losses that take queries for whole."""
        cells = "cell_labels" in arguments
        if self.mix and not cells:
            expected = f"queries of one class each for {loss}, which takes no cell_labels"
            raise ValueError(f"expected {expected}, got mixed: leave batches.mix out")
        self.mix = cells if self.mix is None else self.mix

    @property
    def recorded(self) -> dict[str, Any]:
        return {"mix": self.mix, "ways": self.shape.ways, "queries": self.shape.queries}

    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        sampled = EpisodeSampler(samples.classes_for("Episodes", "choose Views"), samples.names, self.shape)
        steps = self.steps or max(1, len(samples) // self.batch_size)
        seeds = (torch.Generator().manual_seed(derive_seed(seed, epoch, step)) for step in range(steps))
        return torch.stack([sampled(generator).flatten() for generator in seeds])

    def fit(self, samples: Samples) -> None:
        self.shape = fitted(samples.counts, self.shape, self._given)
        self.together = self.shape.samples
        self.batch_size = self.shape.episodes * self.together
        if self.augmentation is not None:
            fit_augmentation(self.augmentation, samples)

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch with one view of each input, (B, 1, ...), queries mixed, and the shape of its episodes."""
        inputs = batch["inputs"]
        share = LocalBatch.of(batch)
        held, over = divmod(len(inputs), self.shape.samples)
        if over:
            got = f"{len(inputs)}: set batches.episodes to a multiple of the number of processes"
            raise ValueError(f"expected whole episodes of {self.shape.samples} samples on every process, got {got}")
        shape = self.shape._replace(episodes=held)
        if self.augmentation is not None:
            inputs = self.augmentation(inputs, share.draw(1, len(inputs), inputs.device))
        if not self.mix:
            return {**batch, "inputs": inputs.unsqueeze(1), "episodes": shape}
        if inputs.ndim != 4:
            raise ValueError(f"expected images to mix, got inputs {tuple(inputs.shape[1:])}: leave batches.mix out")
        first, total = share.first // shape.samples, share.samples // shape.samples
        draw = Draw(derive_seed(share.seed, MIXING), total, slice(first, first + held), inputs.device)
        mix = draw_mix(draw, shape.ways * shape.queries, *inputs.shape[2:])
        parted = inputs.view(held, shape.ways, shape.each, *inputs.shape[1:])
        queries = patched(parted[:, :, shape.shots :].flatten(1, 2), mix)
        queries = queries.unflatten(1, (shape.ways, shape.queries))
        inputs = torch.cat([parted[:, :, : shape.shots], queries], dim=2).flatten(0, 2)
        return {**batch, "inputs": inputs.unsqueeze(1), "episodes": shape, "mix": mix}
