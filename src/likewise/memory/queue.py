"""A queue of the most recent keys, with their labels and sample ids."""

from contextlib import nullcontext
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.distributed import RankSizes, agreement, exchange, gather, rank, world_size
from likewise.memory.tables import check_size, check_tensor
from likewise.operator.inputs import check_finite


@final
class Queue(nn.Module):
    r"""A ring buffer of the latest S keys, with their labels and sample ids.

    $$
    \text{place of the } t\text{-th key} = t \bmod S, \qquad \text{keys held} = \min(T, S)
    $$

    where T keys have been enqueued, counted from 0. Any batch size works; a batch larger than the queue leaves only its
    last keys.

    Args:
        size: S, the number of keys the queue can hold.
        feature_dim: D, the number of features of a key.
        num_labels: L, for label sets, multi-hot (B, L); None: labels are integer classes, (B,).
        gather_distributed: Whether to enqueue the keys of all processes, in rank order, so that every process holds the
            same queue. Batch sizes may then differ between processes, and batches may be empty.

    Pass the contents of a gathered queue to a loss as ``queue=`` and ``queue_labels=``, which are never gathered. As
    ``references=``, which losses gather, they would be included once for each process.

    Memory:
        O(S·D), with label sets O(S·(D + L)): a label takes one byte.

    Source:
        He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, section 3.2. Unlike in the
        authors' code, which starts from random keys, unfilled places are not returned.

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
    """The number of keys enqueued so far, 0-d; it determines the place of the next key and the number held."""
    labelled: Tensor
    """The number of keys enqueued with labels, 0-d: all or none."""

    def __init__(
        self, size: int, feature_dim: int, *, num_labels: int | None = None, gather_distributed: bool = False
    ) -> None:
        super().__init__()
        size = check_size("size", size, remedy="pass the number of keys to hold, MoCo uses 65536")
        feature_dim = check_size("feature_dim", feature_dim, remedy="pass the features of an embedding")
        if num_labels is not None:
            num_labels = check_size("num_labels", num_labels, remedy="None is for integer classes")
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
        """Return the number of keys held; this synchronises a GPU until the queue is full, and not afterwards."""
        if not self._is_known("full"):
            enqueued = int(self.enqueued)
            if enqueued < len(self.key_ring):
                return enqueued
            self._know("full")
        return len(self.key_ring)

    @property
    def keys(self) -> Float[Tensor, "r d"]:
        """The keys held, in ring order: a copy, not changed by enqueueing before the backward."""
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
                got = f"{labelled} for {enqueued} keys: call enqueue(keys, labels) from the first batch on, or reset()"
                raise ValueError(f"expected a label for every key in the queue, got {got}")
            self._know("labelled")
        return self.label_ring[: len(self)].clone()

    @property
    def ids(self) -> Int[Tensor, " r"]:
        """The sample ids of the keys held, −1 for keys without one: a copy, in the order of `keys`."""
        return self.id_ring[: len(self)].clone()

    def enqueue(self, keys: Tensor, labels: Tensor | None = None, ids: Tensor | None = None) -> None:
        """Replace the oldest keys with a batch; on a GPU this does not synchronise.

        Args:
            keys: (B, D), any floating dtype. They are detached and stored in the dtype of the queue.
            labels: Classes, (B,), or with ``num_labels`` label sets, (B, L); for all batches or for none.
            ids: Integer sample ids, (B,); None: −1.

        Raises:
            ValueError: If shapes, dtypes or devices do not match the queue, values are not finite or not zeros and
                ones (checked on the CPU only), or only some batches have labels (on a GPU noticed when they are read).
                With several processes, all of them raise it.
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
        """Remove all keys."""
        self._known.clear()
        for counter in (self.enqueued, self.labelled):
            counter.zero_()
        for ring, empty in ((self.key_ring, 0), (self.label_ring, 0), (self.id_ring, -1)):
            ring.fill_(empty)

    def extra_repr(self) -> str:
        """Return the arguments shown by ``repr``."""
        size, feature_dim = self.key_ring.shape
        return f"{size=}, {feature_dim=}, num_labels={self.num_labels}, gather_distributed={self.gather_distributed}"

    def _know(self, *facts: str) -> None:
        """Record facts with the counter's version, to ask a GPU once; torch counts no changes of inference tensors."""
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
        shared = int(labels is not None), *self.key_ring.shape, self.num_labels or 0, keys.dtype.itemsize
        everyone = exchange((len(keys), *shared), keys.device)
        if len({theirs[1:] for theirs in everyone}) > 1:
            kinds = " and ".join(f"{t[1]}, {t[2]}, {t[3]}, {t[4]}, {t[5]}" for t in everyone)
            expected = "the same labels or none, size, feature_dim, num_labels and bytes of a queue on all ranks"
            raise ValueError(f"expected {expected}, got {kinds}")
        shards = RankSizes(tuple(theirs[0] for theirs in everyone), rank())
        return gather(keys, shards), None if labels is None else gather(labels, shards), gather(ids, shards)

    def _check(self, keys: Tensor, labels: Tensor | None, ids: Tensor | None) -> None:
        feature_dim, device = self.key_ring.shape[1], self.key_ring.device
        for name, values in {"keys": keys, "labels": labels, "ids": ids}.items():
            if name == "keys" or values is not None:
                check_tensor(name, values, device, holder="queue")
        if keys.ndim != 2 or keys.shape[1] != feature_dim or not keys.is_floating_point():
            got = f"{keys.dtype} of shape {tuple(keys.shape)}: flatten views, or build the queue with their feature_dim"
            raise ValueError(f"expected keys to be floating, of shape (B, {feature_dim}), got {got}")
        if labels is None and self.num_labels is not None:
            remedy = "pass them, or build the queue without num_labels"
            raise ValueError(f"expected keys with label sets (B, {self.num_labels}), got none: {remedy}")
        if ids is not None:
            _check_integers("ids", ids, len(keys))
        if labels is not None and self.num_labels is not None:
            _check_label_sets(labels, (len(keys), self.num_labels))
        elif labels is not None:
            if labels.ndim == 2:
                got = f"label sets of shape {tuple(labels.shape)}: build the queue with num_labels={labels.shape[1]}"
                raise ValueError(f"expected integer classes, (B,), as labels, got {got}")
            _check_integers("labels", labels, len(keys))
        if device.type == "cpu" and self.enqueued > 0 and (labels is None) != (self.labelled == 0):
            had, now = ("none", "some") if labels is not None else ("labels", "none")
            got = f"{now} where earlier batches had {had}: always pass them, or reset() the queue"
            raise ValueError(f"expected labels with every batch or with none, got {got}")


def _check_integers(name: str, values: Tensor, count: int) -> None:
    if values.ndim != 1 or len(values) != count or values.is_floating_point() or values.is_complex():
        got = f"{values.dtype} of shape {tuple(values.shape)}: convert them with .long()"
        raise ValueError(f"expected {name} to be integers of shape ({count},), one for each key, got {got}")


def _check_label_sets(labels: Tensor, shape: tuple[int, int]) -> None:
    if tuple(labels.shape) != shape:
        got = f"shape {tuple(labels.shape)}: one-hot encode classes, or build the queue without num_labels"
        raise ValueError(f"expected labels as multi-hot label sets of shape {shape}, got {got}")
    if labels.device.type == "cpu" and not ((labels == 0) | (labels == 1)).all():
        remedy = "apply a threshold to counts or probabilities, or build the queue without num_labels"
        raise ValueError(f"expected labels of zeros and ones, got other values: {remedy}")
