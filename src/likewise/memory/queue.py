"""A queue: the newest keys, with their labels and sample ids."""

from contextlib import nullcontext
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.distributed import Shards, agreement, exchange, gather, rank, world_size
from likewise.memory.checks import check_size, check_tensor
from likewise.operator.contrast import check_finite


@final
class Queue(nn.Module):
    r"""Ring of the newest S keys, with their labels and sample ids.

    $$
    \text{place of the } t\text{-th key} = t \bmod S, \qquad \text{keys held} = \min(T, S)
    $$

    where T keys have been enqueued, counted from 0. Any batch size will do; of a batch larger than the queue the newest
    keys stay.

    Args:
        size: Keys S that the queue holds.
        feature_dim: Features D of a key.
        num_labels: L, for label sets, multi-hot (B, L); None: labels are integer classes, (B,).
        gather_distributed: Whether the keys of all processes are enqueued, in the order of ranks, so that every process
            holds the same queue; a batch may then differ in size between them, and be empty.

    A loss takes what such a queue holds as ``queue=`` and ``queue_labels=``, a section
    that every process holds whole: it is contrasted beside the batch or the references, and never gathered. The
    ``references=`` of a loss are gathered: a queue given there would stand there once for each process.

    Raises:
        ValueError: If a size is no integer of at least 1.

    Memory:
        O(S·D), with label sets O(S·(D + L)): a label takes one byte.

    Source:
        He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, section 3.2. The authors'
        code starts from random keys, and takes only batch sizes that divide the queue's; here what is not filled is
        not returned.

    Example:
        >>> queue = Queue(size=4, feature_dim=2)
        >>> queue.enqueue(torch.ones(3, 2), labels=torch.tensor([0, 1, 2]))
        >>> queue.enqueue(torch.zeros(2, 2), labels=torch.tensor([3, 4]))
        >>> len(queue), queue.labels
        (4, tensor([4, 1, 2, 3]))
    """

    key_ring: Tensor
    label_ring: Tensor
    id_ring: Tensor
    enqueued: Tensor
    """How many keys there have been, 0-d: where the next one goes, and how many are held, follow from it."""
    labelled: Tensor
    """How many of those had labels, 0-d: all or none."""

    def __init__(
        self, size: int, feature_dim: int, *, num_labels: int | None = None, gather_distributed: bool = False
    ) -> None:
        super().__init__()
        size = check_size("size", size, remedy="give how many keys to hold, MoCo's are 65536")
        feature_dim = check_size("feature_dim", feature_dim, remedy="give the features of an embedding")
        if num_labels is not None:
            num_labels = check_size("num_labels", num_labels, remedy="None keeps integer classes")
        self.num_labels = num_labels
        self.gather_distributed = gather_distributed
        labels = torch.zeros(size, dtype=torch.int64)
        self.register_buffer("key_ring", torch.zeros(size, feature_dim))
        self.register_buffer("label_ring", labels if num_labels is None else labels.new_zeros(size, num_labels).bool())
        self.register_buffer("id_ring", torch.full_like(labels, -1))
        self.register_buffer("enqueued", torch.tensor(0))
        self.register_buffer("labelled", torch.tensor(0))
        self._known: dict[str, tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        """Return how many keys are held; a GPU is waited for until the queue is full, and not from then on."""
        if not self._is_known("full"):
            enqueued = int(self.enqueued)
            if enqueued < len(self.key_ring):
                return enqueued
            self._know("full")
        return len(self.key_ring)

    @property
    def keys(self) -> Float[Tensor, "r d"]:
        """The keys held, in the order of the ring: a copy, so that enqueueing before the backward does no harm."""
        return self.key_ring[: len(self)].clone()

    @property
    def labels(self) -> Int[Tensor, " r"] | Bool[Tensor, "r l"]:
        """The labels of the keys held, int64 classes or boolean label sets: a copy, in the order of `keys`.

        Raises:
            ValueError: If keys were enqueued without labels.
        """
        if not self._is_known("labelled"):
            labelled, enqueued = int(self.labelled), int(self.enqueued)
            if labelled < enqueued:
                raise ValueError(
                    f"labels of a queue are there where all keys had some, got {labelled} for {enqueued} keys; "
                    "call enqueue(keys, labels) from the first batch on, or reset() the queue"
                )
            self._know("labelled")
        return self.label_ring[: len(self)].clone()

    @property
    def ids(self) -> Int[Tensor, " r"]:
        """The sample ids of the keys held, −1 where none were given: a copy, in the order of `keys`."""
        return self.id_ring[: len(self)].clone()

    def enqueue(self, keys: Tensor, labels: Tensor | None = None, ids: Tensor | None = None) -> None:
        """Put a batch in the place of the oldest keys; on a GPU nothing waits for the device.

        Args:
            keys: (B, D), any floating dtype. They are detached, and held in the dtype of the queue.
            labels: Integer classes, (B,), or with ``num_labels`` label sets, zeros and ones, (B, L); for all batches or
                for none.
            ids: Integer sample ids, (B,); −1 where there are none.

        Raises:
            ValueError: If shapes, dtypes or devices do not fit the queue, values are not finite or not zeros and ones,
                or labels come with some batches only (what takes looking at values is checked on the CPU; on a GPU
                missing labels are noticed when they are read). Among several processes, on every one of them.
        """
        gathers = self.gather_distributed and world_size() > 1
        with torch.no_grad():
            with agreement(self.key_ring.device) if gathers else nullcontext():
                self._check(keys, labels, ids)
                keys = keys.to(self.key_ring.dtype)
                check_finite("keys", keys)
            labels = None if labels is None else labels.to(self.label_ring.dtype)
            ids = self.id_ring.new_full((len(keys),), -1) if ids is None else ids.to(torch.int64)
            if gathers:
                keys, labels, ids = self._gathered(keys, labels, ids)
            self._write(keys, labels, ids)

    def reset(self) -> None:
        """Forget all keys."""
        self._known.clear()
        for counter in (self.enqueued, self.labelled):
            counter.zero_()
        for ring, empty in ((self.key_ring, 0), (self.label_ring, 0), (self.id_ring, -1)):
            ring.fill_(empty)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        size, feature_dim = self.key_ring.shape
        return f"{size=}, {feature_dim=}, num_labels={self.num_labels}, gather_distributed={self.gather_distributed}"

    def _know(self, *facts: str) -> None:
        """Note what holds of the counters as they are now, so that a GPU need not be waited for again.

        Torch counts the changes of a tensor, but not of one that was made in inference mode: of it nothing is noted.
        """
        if not self.enqueued.is_inference():
            now = self.enqueued, self.enqueued._version  # noqa: SLF001 - torch has no public name for it
            self._known |= dict.fromkeys(facts, now)

    def _is_known(self, fact: str) -> bool:
        counter, version = self._known.get(fact, (None, 0))
        now = self.enqueued
        return counter is now and version == now._version  # noqa: SLF001 - as above

    def _write(self, keys: Tensor, labels: Tensor | None, ids: Tensor) -> None:
        size, count = len(self.key_ring), len(keys)
        stays = [fact for fact in self._known if self._is_known(fact) and (fact == "full" or labels is not None)]
        skipped = max(count - size, 0)
        places = (self.enqueued + torch.arange(skipped, count, device=keys.device)) % size
        self.key_ring.index_copy_(0, places, keys[skipped:])
        self.id_ring.index_copy_(0, places, ids[skipped:])
        if labels is not None:
            self.label_ring.index_copy_(0, places, labels[skipped:])
            self.labelled += count
        self.enqueued += count
        self._known.clear()
        self._know(*stays)

    def _gathered(self, keys: Tensor, labels: Tensor | None, ids: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the batches of all processes as one, in the order of ranks."""
        alike = int(labels is not None), *self.key_ring.shape, self.num_labels or 0, keys.dtype.itemsize
        everyone = exchange((len(keys), *alike), keys.device)
        if len({theirs[1:] for theirs in everyone}) > 1:
            kinds = " and ".join(f"{t[1]}, {t[2]}, {t[3]}, {t[4]}, {t[5]}" for t in everyone)
            raise ValueError(
                "labels or none, size, feature_dim, num_labels and bytes of a queue are the same on all ranks, "
                f"got {kinds}; build the queues and batches of all ranks alike"
            )
        shards = Shards(tuple(theirs[0] for theirs in everyone), rank())
        return gather(keys, shards), None if labels is None else gather(labels, shards), gather(ids, shards)

    def _check(self, keys: Tensor, labels: Tensor | None, ids: Tensor | None) -> None:
        feature_dim, device = self.key_ring.shape[1], self.key_ring.device
        for name, values in {"keys": keys, "labels": labels, "ids": ids}.items():
            if name == "keys" or values is not None:
                check_tensor(name, values, device, holder="queue")
        if keys.ndim != 2 or keys.shape[1] != feature_dim or not keys.is_floating_point():
            raise ValueError(
                f"keys are floating, of shape (B, {feature_dim}), got {keys.dtype} of shape {tuple(keys.shape)}; "
                "flatten views, and give the queue the feature_dim of an embedding"
            )
        if labels is None and self.num_labels is not None:
            raise ValueError(
                f"keys come with label sets (B, {self.num_labels}), as the queue was made for, got none; give some, or "
                "make the queue without num_labels"
            )
        if ids is not None:
            _check_integers("ids", ids, len(keys))
        if labels is not None and self.num_labels is not None:
            _check_label_sets(labels, (len(keys), self.num_labels))
        elif labels is not None:
            if labels.ndim == 2:
                raise ValueError(
                    f"labels of this queue are integer classes, (B,), got label sets of shape {tuple(labels.shape)}; "
                    f"build it with num_labels={labels.shape[1]} to hold label sets"
                )
            _check_integers("labels", labels, len(keys))
        if device.type == "cpu" and self.enqueued > 0 and (labels is None) != (self.labelled == 0):
            had, got = ("none", "some") if labels is not None else ("labels", "none")
            raise ValueError(
                f"labels come with every batch or with none, got {got} where the batches before had {had}; "
                "pass them always, or reset() the queue"
            )


def _check_integers(name: str, values: Tensor, count: int) -> None:
    if values.ndim != 1 or len(values) != count or values.is_floating_point() or values.is_complex():
        raise ValueError(
            f"{name} are integers of shape ({count},), one for each key, got {values.dtype} of shape "
            f"{tuple(values.shape)}; convert them with .long(), and pass them in the order of the keys"
        )


def _check_label_sets(labels: Tensor, shape: tuple[int, int]) -> None:
    if tuple(labels.shape) != shape:
        raise ValueError(
            f"labels of this queue are multi-hot label sets of shape {shape}, got shape {tuple(labels.shape)}; "
            "one-hot classes, or build the queue without num_labels"
        )
    if labels.device.type == "cpu" and not ((labels == 0) | (labels == 1)).all():
        raise ValueError(
            "labels of this queue are zeros and ones, got other values; "
            "a count or a probability needs a threshold, and class labels a queue without num_labels"
        )
