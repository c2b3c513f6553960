"""likewise: pull what is alike, push what is not.

Losses for contrastive representation learning. Each is one equation with two pair weights, evaluated exactly in memory
that grows with the number of rows, not with its square.

Names are imported on first use: neither ``import likewise`` nor the command's help loads torch.

Example:
    >>> import torch
    >>> import likewise as lw
    >>> embeddings = torch.randn(8, 2, 32, requires_grad=True)  # 8 samples, 2 views each, 32 features
    >>> loss = lw.SupConLoss(temperature=0.1)(embeddings, labels=torch.arange(8) % 3)
    >>> loss.backward()
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and the documentation; `__getattr__` finds the same names at run time
    from likewise import pairs
    from likewise.inference import load

    # fmt: off
    from likewise.losses import (  # isort: skip
        ArcFaceLoss, AsymmetricLoss, BatchTripletLoss, BCELoss, BCLLoss, BYOLLoss, ClipLoss,
        ContrastiveMarginLoss, CosFaceLoss, CrossEntropyLoss, DCLLoss, HardNegativeLoss, InfoNCELoss,
        InfoPatchLoss, KCLLoss, LiftedStructureLoss, Matryoshka, MSCLoss, MulSupConLoss, MultiSimilarityLoss,
        NPairsLoss, NTXentLoss, NWSLoss, PaCoLoss, PatchLoss, PrototypicalLoss, ProxyAnchorLoss, ProxyNCALoss,
        RASCALLoss, SigLIPLoss, SupConLoss, TripletLoss, label_pair_similarity,
    )
    # fmt: on
    from likewise.operator import contrast, log_sum_exp, pairwise_sum
    from likewise.runs import load_encoder
    from likewise.workflows import compare, embed, evaluate, export, predict, search, sweep, train, transfer

# fmt: off
__all__ = [
    "ArcFaceLoss", "AsymmetricLoss", "BCELoss", "BCLLoss", "BYOLLoss", "BatchTripletLoss", "ClipLoss",
    "ContrastiveMarginLoss", "CosFaceLoss", "CrossEntropyLoss", "DCLLoss", "HardNegativeLoss", "InfoNCELoss",
    "InfoPatchLoss", "KCLLoss", "LiftedStructureLoss", "MSCLoss", "Matryoshka", "MulSupConLoss",
    "MultiSimilarityLoss", "NPairsLoss", "NTXentLoss", "NWSLoss", "PaCoLoss", "PatchLoss", "PrototypicalLoss",
    "ProxyAnchorLoss", "ProxyNCALoss", "RASCALLoss", "SigLIPLoss", "SupConLoss", "TripletLoss", "compare",
    "contrast", "embed", "evaluate", "export", "label_pair_similarity", "load", "load_encoder", "log_sum_exp",
    "pairs", "pairwise_sum", "predict", "search", "sweep", "train", "transfer",
]
# fmt: on
__version__ = "0.1.0"
_PACKAGE_OF = {  # all other names are in losses
    **dict.fromkeys(("contrast", "log_sum_exp", "pairwise_sum"), "operator"),
    "load": "inference",
    "load_encoder": "runs",
    **dict.fromkeys(
        ("compare", "embed", "evaluate", "export", "predict", "search", "sweep", "train", "transfer"), "workflows"
    ),
}


def __getattr__(name: str) -> Any:
    """Import a module, or a name from one, on first use."""
    if not name.startswith("_") and name in {module.name for module in iter_modules(__path__)}:
        return import_module(f"likewise.{name}")  # also sets it as an attribute
    if name not in __all__:
        raise AttributeError(f"module 'likewise' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"likewise.{_PACKAGE_OF.get(name, 'losses')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
