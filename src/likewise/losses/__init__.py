"""Losses: one equation and its pair weights in each file; the shared parts are in `likewise.losses.base`."""

from likewise.losses.base import ContrastiveLoss, Loss, LossOptions
from likewise.losses.batch_triplet import BatchTripletLoss
from likewise.losses.bcl import BCLLoss
from likewise.losses.byol import BYOLLoss
from likewise.losses.classifiers import AsymmetricLoss, BCELoss, CrossEntropyLoss
from likewise.losses.clip import ClipLoss
from likewise.losses.contrastive_margin import ContrastiveMarginLoss
from likewise.losses.dcl import DCLLoss
from likewise.losses.hard_negative import HardNegativeLoss
from likewise.losses.info_nce import InfoNCELoss
from likewise.losses.info_patch import InfoPatchLoss
from likewise.losses.kcl import KCLLoss
from likewise.losses.label_pair_similarity import label_pair_similarity
from likewise.losses.lifted_structure import LiftedStructureLoss
from likewise.losses.margin_softmax import ArcFaceLoss, CosFaceLoss, ProxyNCALoss
from likewise.losses.matryoshka import Matryoshka
from likewise.losses.msc import MSCLoss
from likewise.losses.mul_sup_con import MulSupConLoss
from likewise.losses.multi_similarity import MultiSimilarityLoss
from likewise.losses.n_pairs import NPairsLoss
from likewise.losses.nt_xent import NTXentLoss
from likewise.losses.nws import NWSLoss
from likewise.losses.paco import PaCoLoss
from likewise.losses.patch import PatchLoss
from likewise.losses.prototypical import PrototypicalLoss
from likewise.losses.proxy_anchor import ProxyAnchorLoss
from likewise.losses.rascal import RASCALLoss
from likewise.losses.siglip import SigLIPLoss
from likewise.losses.sup_con import SupConLoss
from likewise.losses.triplet import TripletLoss

__all__ = [
    "ArcFaceLoss",
    "AsymmetricLoss",
    "BCELoss",
    "BCLLoss",
    "BYOLLoss",
    "BatchTripletLoss",
    "ClipLoss",
    "ContrastiveLoss",
    "ContrastiveMarginLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "DCLLoss",
    "HardNegativeLoss",
    "InfoNCELoss",
    "InfoPatchLoss",
    "KCLLoss",
    "LiftedStructureLoss",
    "Loss",
    "LossOptions",
    "MSCLoss",
    "Matryoshka",
    "MulSupConLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NWSLoss",
    "PaCoLoss",
    "PatchLoss",
    "PrototypicalLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "RASCALLoss",
    "SigLIPLoss",
    "SupConLoss",
    "TripletLoss",
    "label_pair_similarity",
]
