"""A loss of your own, trained by the command: put this file into the current folder, or anywhere on Python's path.

    pip install '.[train]'
    likewise train --loss own_loss.ViewWeightedLoss --loss.own_views 4 --trainer.max_epochs 3

`likewise train --loss.help own_loss.ViewWeightedLoss` lists its options: they are the parameters of `__init__`. What
`forward` names is what it gets: the embeddings of all views, and the labels. The command evaluates the encoder and
writes the run's folder, as with any other loss; nothing else is to be written.

The loss is SupCon in which the other views of a sample attract more than other samples of its class. Because it is a
`ContrastiveLoss`, it has all options of the others, such as `--loss.normalize`, and is exact across processes. Its
memory grows with the number of rows, not with its square.
"""

from typing import Unpack, final

import torch
from torch import Tensor

from likewise import pairs
from likewise.losses import ContrastiveLoss, LossOptions


@final
class ViewWeightedLoss(ContrastiveLoss):
    """SupCon in which a sample's own views attract several times as much as other samples of its class.

    Args:
        temperature: τ > 0.
        own_views: How many times as much, at least 0.
        **options: reduction, normalize, gather_distributed, backend.
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, temperature: float = 0.1, own_views: float = 2.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        if own_views < 0:
            raise ValueError(f"expected own_views of at least 0, got {own_views}: 1 is SupCon")
        self.own_views = own_views

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch: embeddings are (B, V, E), labels are (B,)."""
        rows = self.rows(embeddings)  # of all views and, where it gathers, of all processes
        others = rows.not_self()
        same_sample = pairs.SameSample(*rows.samples()) & others
        same_class = pairs.SameClass(*rows.labels(labels, None, torch.int64)) & others
        pull = (same_class & ~same_sample) + same_sample * self.own_views
        return self.evaluate(rows, pull=pull.mean_over_row(), push=others, positives=same_class)
