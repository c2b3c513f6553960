"""Losses, one file per family: each class has its equation and pair weights; `likewise.losses.base` is their base."""

from likewise.losses.base import ContrastiveLoss, Loss, LossOptions
from likewise.losses.class_pairs import ContrastiveMarginLoss, LiftedStructureLoss, MultiSimilarityLoss
from likewise.losses.classifiers import AsymmetricLoss, BCELoss, CrossEntropyLoss
from likewise.losses.episodes import InfoPatchLoss, PatchLoss, PrototypicalLoss
from likewise.losses.info_nce import ClipLoss, InfoNCELoss, SigLIPLoss
from likewise.losses.label_pair_similarity import label_pair_similarity
from likewise.losses.label_sets import MSCLoss, MulSupConLoss, NWSLoss
from likewise.losses.long_tail import BCLLoss, KCLLoss, PaCoLoss
from likewise.losses.matryoshka import Matryoshka
from likewise.losses.prototypes import ArcFaceLoss, CosFaceLoss, ProxyAnchorLoss, ProxyNCALoss
from likewise.losses.rascal import RASCALLoss
from likewise.losses.sup_con import SupConLoss
from likewise.losses.triplets import BatchTripletLoss, NPairsLoss, TripletLoss
from likewise.losses.views import BYOLLoss, DCLLoss, HardNegativeLoss, NTXentLoss

# fmt: off
__all__ = [
    "ArcFaceLoss", "AsymmetricLoss", "BCELoss", "BCLLoss", "BYOLLoss", "BatchTripletLoss", "ClipLoss",
    "ContrastiveLoss", "ContrastiveMarginLoss", "CosFaceLoss", "CrossEntropyLoss", "DCLLoss", "HardNegativeLoss",
    "InfoNCELoss", "InfoPatchLoss", "KCLLoss", "LiftedStructureLoss", "Loss", "LossOptions", "MSCLoss",
    "Matryoshka", "MulSupConLoss", "MultiSimilarityLoss", "NPairsLoss", "NTXentLoss", "NWSLoss", "PaCoLoss",
    "PatchLoss", "PrototypicalLoss", "ProxyAnchorLoss", "ProxyNCALoss", "RASCALLoss", "SigLIPLoss", "SupConLoss",
    "TripletLoss", "label_pair_similarity",
]
# fmt: on
