"""likewise: pull what is alike, push what is not.

Losses for learning representations by contrast. Every one is a single equation with two pair weights, evaluated exactly
in memory that grows with the number of rows and not with its square.

Example:
    >>> import torch
    >>> import likewise as lw
    >>> embeddings = torch.randn(8, 2, 32, requires_grad=True)  # 8 samples, 2 views each, 32 features
    >>> loss = lw.SupConLoss(temperature=0.1)(embeddings, labels=torch.arange(8) % 3)
    >>> loss.backward()
"""

from likewise import pairs
from likewise.losses import (
    BCLLoss,
    BYOLLoss,
    DCLLoss,
    HardNegativeLoss,
    InfoNCELoss,
    KCLLoss,
    MSCLoss,
    MulSupConLoss,
    NPairsLoss,
    NTXentLoss,
    NWSLoss,
    PaCoLoss,
    PatchLoss,
    ProxyNCALoss,
    RASCALLoss,
    SupConLoss,
    TripletLoss,
    label_pair_similarity,
)
from likewise.operator import contrast, log_sum_exp

__all__ = [
    "BCLLoss",
    "BYOLLoss",
    "DCLLoss",
    "HardNegativeLoss",
    "InfoNCELoss",
    "KCLLoss",
    "MSCLoss",
    "MulSupConLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NWSLoss",
    "PaCoLoss",
    "PatchLoss",
    "ProxyNCALoss",
    "RASCALLoss",
    "SupConLoss",
    "TripletLoss",
    "contrast",
    "label_pair_similarity",
    "log_sum_exp",
    "pairs",
]
__version__ = "0.1.0"
