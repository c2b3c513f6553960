"""Cross-entropy of a classifier: the baseline for contrastive losses with classes."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss
from likewise.losses.checks import check_number
from likewise.losses.class_logits import with_classes


@final
class CrossEntropyLoss(Loss):
    r"""Cross-entropy: identify the sample's class among all classes from a classifier's logits.

    $$
    \ell_i = \log \sum_c e^{g_{ic}} - \sum_c q_{ic} \, g_{ic}, \qquad
    q_{ic} = (1 - \varepsilon) \, [c = y_i] + \frac{\varepsilon}{C}
    $$

    with g_ic the logit of row i for class c, and ε the label smoothing. It is PyTorch's own loss. It is not a
    contrastive loss and has none of their options. If every process holds the same number of samples, the mean of the
    processes' losses is the loss of the whole batch.

    Args:
        label_smoothing: ε between 0 and 1, the share of the target that is spread evenly over all classes.

    Attributes:
        last: ``"accuracy"``, the share of rows whose largest logit is that of their class; in a tie the first counts.

    Returns:
        A call returns the mean over all rows, a scalar, float32 or wider; 0 for an empty batch.

    Raises:
        ValueError: If ε is not between 0 and 1, or a call's input is invalid; see `forward`.

    Memory:
        O(N·C).

    Source:
        Label smoothing: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for Computer
        Vision", 2016, section 7.

    Example:
        >>> import torch
        >>> class_logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> loss_of = CrossEntropyLoss()
        >>> loss_of(class_logits, torch.tensor([0, 0]))
        tensor(1.1269)
        >>> loss_of.last["accuracy"]
        tensor(0.5000)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = check_number("label_smoothing", label_smoothing, 0, 1, "0 and 0.1")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            class_logits: One logit per class for each sample, (B, C), or for each of its V views, (B, V, C).
            labels: Classes of the samples, 0 … C − 1, (B,).

        Raises:
            ValueError: If shapes or lengths do not match, there is only one class, logits hold NaN or infinity, or a
                label is not one of the C classes (values are checked on the CPU only).
        """
        rows, classes = with_classes(class_logits, labels)
        count = max(len(rows), 1)
        self.last = {"accuracy": (rows.detach().argmax(dim=1) == classes).sum() / count}
        smoothed = functional.cross_entropy(rows, classes, reduction="sum", label_smoothing=self.label_smoothing)
        return smoothed / count
