"""k-positive contrastive learning: SupCon with as many positives for a frequent class as for a rare one."""

from numbers import Integral
from typing import Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import check_classes, check_embeddings
from likewise.losses.rows import Rows
from likewise.pairs import Equal, SameSample


@final
class KCLLoss(ContrastiveLoss):
    r"""k-positive contrastive: of all other rows, tell the sample's other views and k rows drawn from its class.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \frac{1}{|P_k(i)|} \sum_{p \in P_k(i)} z_i \cdot z_p / \tau
    $$

    where P_k(i) holds the other views of anchor i's sample and one view each of k other samples of its class, or of all
    of them where there are fewer. Which k, a fresh random order of each class says: they are the next k samples in it,
    cyclically, so that every k-subset of the others is as likely, though views of one sample share theirs. Which view,
    each anchor draws for itself. An anchor without any positive is inactive: it contributes neither loss nor gradient,
    and the mean leaves it out. Without any active anchor the loss is 0, with gradient 0.

    Args:
        k: How many other samples of an anchor's class are its positives, at most; an integer ≥ 1.
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`.

    Returns:
        From a call, see `forward`: the mean over active anchors, a scalar; with ``reduction="none"`` one loss for each
        row, (N,), 0 on inactive ones; of (B, V, D) the row of sample b's view v is v·B + b. Each call takes one number
        from torch's global generator (of rank 0, if gathered), so that ``torch.manual_seed`` repeats its draw; not
        gathered, a GPU's own generator draws there, which ``torch.manual_seed`` seeds, too.

    Raises:
        ValueError: If k < 1, τ ≤ 0, or a call's input does not agree; see `forward`.

    Memory:
        O((N + R)·(D + k) + tile).

    Source:
        Kang, Li, Xie, Yuan, Feng, "Exploring Balanced Feature Spaces for Representation Learning", 2021, the loss
        L_KCL, with k = 6. The authors' code contrasts with a queue of keys, and takes there the k rows of the class
        that a top-k over equal values happens to return, where the paper draws them.

    Example:
        >>> import torch
        >>> loss = KCLLoss(k=2, temperature=1.0)
        >>> loss(torch.eye(4).repeat(2, 1), torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])).ndim
        0
        >>> loss.last["positives_per_anchor"]
        tensor([2., 2., 2., 2., 2., 2., 2., 0.])
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, k: int = 6, temperature: float | Tensor = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ValueError(f"k is an integer ≥ 1, got {k!r}; NTXentLoss draws no positives")
        self.k = int(k)

    def forward(self, embeddings: Float[Tensor, "..."], labels: Int[Tensor, " b"]) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, any integers, (B,).

        Raises:
            ValueError: If shapes or lengths disagree, or embeddings hold NaN or infinity (looked at on the CPU).
        """
        with self.checks(embeddings=embeddings, labels=labels):
            check_embeddings("embeddings", embeddings)
            check_classes("labels", labels, "embeddings", len(embeddings))
        rows = self.rows(embeddings)
        push = rows.not_self()
        views = SameSample(*rows.samples()) & push
        everyone = torch.arange(len(rows.references), device=rows.queries.device)
        positives = sum((Equal(row, everyone) for row in self._drawn(rows, labels)), start=views)
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)

    def _drawn(self, rows: Rows, labels: Tensor) -> Int[Tensor, "k n"]:
        """Return the references that each anchor draws; R, which is none of them, where its class has no more.

        All processes draw for all samples, alike, and keep what their own anchors drew.
        """
        device, views, generator = rows.queries.device, rows.views, self._generator(rows)
        labels = distributed.gather(labels.to(device, torch.int64), rows.sample_shards).contiguous()
        source = device if generator is None else "cpu"
        shuffled = torch.randperm(len(labels), generator=generator, device=source).to(device)
        view = torch.randint(views, (self.k, views, len(labels)), generator=generator, device=source).to(device)
        order = shuffled[torch.argsort(labels[shuffled], stable=True)]  # class after class, at random within each
        first, end = (torch.searchsorted(labels[order], labels, right=right) for right in (False, True))
        members, place = end - first, torch.argsort(order) - first
        step = torch.arange(1, self.k + 1, device=device)[:, None]
        sample = order[first + (place + step) % members]
        anchors, references = rows.samples()
        row_of = torch.argsort(anchors if references is None else references, stable=True)  # sample 0's views, 1's, …
        drawn = row_of[sample[:, None] * views + view].masked_fill((step >= members)[:, None], len(rows.references))
        start = rows.sample_shards.offset
        return drawn[:, :, start : start + len(rows.queries) // views].flatten(1)

    def _generator(self, rows: Rows) -> torch.Generator | None:
        """Return a generator seeded by the global one, by that of rank 0 if rows are gathered, or a GPU's own, None.

        A GPU would wait for what is drawn on the CPU, and a CUDA graph would replay the same draw.
        """
        if rows.queries.device.type != "cpu" and not rows.gathered:
            return None
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        if rows.gathered:
            seed = distributed.exchange((seed,), rows.queries.device)[0][0]
        return torch.Generator().manual_seed(seed)
