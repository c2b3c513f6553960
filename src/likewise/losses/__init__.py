"""Losses: each one's equation and pair weights; what they share stands in `likewise.losses.base`."""

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.byol import BYOLLoss
from likewise.losses.info_nce import InfoNCELoss
from likewise.losses.n_pairs import NPairsLoss
from likewise.losses.nt_xent import NTXentLoss
from likewise.losses.patch import PatchLoss
from likewise.losses.sup_con import SupConLoss
from likewise.losses.triplet import TripletLoss

__all__ = [
    "BYOLLoss",
    "ContrastiveLoss",
    "InfoNCELoss",
    "LossOptions",
    "NPairsLoss",
    "NTXentLoss",
    "PatchLoss",
    "SupConLoss",
    "TripletLoss",
]
