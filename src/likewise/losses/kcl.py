"""k-positive contrastive learning: SupCon with as many positives for a frequent class as for a rare one."""

from numbers import Integral
from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings
from likewise.pairs.explicit import Listed


@final
class KCLLoss(ContrastiveLoss):
    r"""k-positive contrastive: identify the sample's other views and k random rows of its class among all other rows.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \frac{1}{|P_k(i)|} \sum_{p \in P_k(i)} z_i \cdot z_p / \tau
    $$

    where P_k(i) holds the other views of anchor i's sample and one view each of k other samples of its class, or of all
    others if there are fewer. Each class is shuffled anew in every call, and the k samples are the next ones in that
    order, cyclically, so that every k-subset of the others is equally likely; the views of one sample share it. The
    view of each is sampled for every anchor separately. An anchor without positives is inactive: it contributes neither
    loss nor gradient and is left out of the mean. If no anchor is active the loss is 0, with gradient 0.

    Args:
        k: Maximum number of other samples of an anchor's class that are its positives; an integer ≥ 1.

    Returns:
        The loss, a scalar. Sampling is seeded with one number from torch's global generator (rank 0's, if gathered), so
        ``torch.manual_seed`` makes it reproducible; on a GPU, if not gathered, the GPU's own generator is used, which
        ``torch.manual_seed`` also seeds.

    Memory:
        O((N + R)·(D + k) + tile).

    Source:
        Kang, Li, Xie, Yuan, Feng, "Exploring Balanced Feature Spaces for Representation Learning", 2021, the loss
        L_KCL, with k = 6.

    Example:
        >>> loss = KCLLoss(k=2, temperature=1.0)
        >>> loss(torch.eye(4).repeat(2, 1), torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])).ndim
        0
        >>> loss.last["positives_per_anchor"]
        tensor([2., 2., 2., 2., 2., 2., 2., 0.])
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, k: int = 6, temperature: Temperature = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ValueError(f"expected k to be an integer ≥ 1, got {k!r}: NTXentLoss has no positives by class")
        self.k = int(k)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings")],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, any integers, (B,).
        """
        rows = self.rows(embeddings)
        push = rows.not_self()
        samples, references = rows.samples()
        row_of = torch.argsort(samples if references is None else references, stable=True).view(-1, rows.views)
        view = torch.arange(rows.views, device=samples.device).repeat_interleave(len(samples) // rows.views)
        step = torch.arange(1, rows.views, device=samples.device)[:, None]
        views = row_of[samples, (view + step) % rows.views]
        positives = Listed(torch.cat([views, self._draw(rows, labels, row_of)]), len(rows.references))
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)

    def _draw(self, rows: ContrastBatch, labels: Tensor, row_of: Int[Tensor, "b v"]) -> Int[Tensor, "k n"]:
        """Return each anchor's sampled references, R where its class has no more; all processes draw alike."""
        device, views, generator = rows.queries.device, rows.views, self._generator(rows)
        labels = distributed.gather(labels.to(device, torch.int64), rows.sample_shards).contiguous()
        source = device if generator is None else "cpu"
        shuffled = torch.randperm(len(labels), generator=generator, device=source).to(device)
        view = torch.randint(views, (self.k, views, len(labels)), generator=generator, device=source).to(device)
        order = shuffled[torch.argsort(labels[shuffled], stable=True)]  # class after class, at random within each
        first, end = (torch.searchsorted(labels[order], labels, right=right) for right in (False, True))
        members, position = end - first, torch.argsort(order) - first
        step = torch.arange(1, self.k + 1, device=device)[:, None]
        sample = order[first + (position + step) % members]
        drawn = row_of[sample[:, None], view].masked_fill((step >= members)[:, None], len(rows.references))
        start = rows.sample_shards.offset
        return drawn[:, :, start : start + len(rows.queries) // views].flatten(1)

    def _generator(self, rows: ContrastBatch) -> torch.Generator | None:
        """Return one seeded by the global one, of rank 0; None on a GPU, where a graph would replay the same sample."""
        if rows.queries.device.type != "cpu" and not rows.gathered:
            return None
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        if rows.gathered:
            seed = distributed.exchange((seed,), rows.queries.device)[0][0]
        return torch.Generator().manual_seed(seed)
