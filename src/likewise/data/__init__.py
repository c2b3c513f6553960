"""Data: sources that read samples, splits that divide them, and batches of views.

Names are imported at first use, all together, so that `likewise.data.detection` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.data.arrays import Arrays
    from likewise.data.augmentation import (
        Augmentation,
        Chain,
        ColourJitter,
        Draw,
        FeatureDropout,
        GaussianBlur,
        RandomAffine,
        RandomResizedCrop,
        RandomShift,
        SimCLRViews,
        TokenDropout,
    )
    from likewise.data.batches import Batch, Batches, Share, Views, mixed, some_inputs
    from likewise.data.by_class import ByClass
    from likewise.data.corruptions import CORRUPTIONS, CorruptedRows, corrupted
    from likewise.data.digits import Digits
    from likewise.data.episode_draw import EpisodeDraw, EpisodeShape
    from likewise.data.episodes import Episodes
    from likewise.data.hub import Hub
    from likewise.data.image_files import read_image
    from likewise.data.of_run import fingerprint, parts_of, parts_of_run
    from likewise.data.patch_mix import Mix, owned_by_partner
    from likewise.data.samplers import Balanced, Sampler, Shuffled, SimilarLength
    from likewise.data.samples import LabelKind, Rows, Samples
    from likewise.data.source import Source
    from likewise.data.split import Parts, Split, Stratified
    from likewise.data.subset import Classes, Fraction, Labelled, LongTail, Subset
    from likewise.data.text import Text
    from likewise.data.texts import Texts, TokenRows
    from likewise.data.torchvision import Torchvision

__all__ = [
    "CORRUPTIONS",
    "Arrays",
    "Augmentation",
    "Balanced",
    "Batch",
    "Batches",
    "ByClass",
    "Chain",
    "Classes",
    "ColourJitter",
    "CorruptedRows",
    "Digits",
    "Draw",
    "EpisodeDraw",
    "EpisodeShape",
    "Episodes",
    "FeatureDropout",
    "Fraction",
    "GaussianBlur",
    "Hub",
    "LabelKind",
    "Labelled",
    "LongTail",
    "Mix",
    "Parts",
    "RandomAffine",
    "RandomResizedCrop",
    "RandomShift",
    "Rows",
    "Sampler",
    "Samples",
    "Share",
    "Shuffled",
    "SimCLRViews",
    "SimilarLength",
    "Source",
    "Split",
    "Stratified",
    "Subset",
    "Text",
    "Texts",
    "TokenDropout",
    "TokenRows",
    "Torchvision",
    "Views",
    "corrupted",
    "fingerprint",
    "mixed",
    "owned_by_partner",
    "parts_of",
    "parts_of_run",
    "read_image",
    "some_inputs",
]
_MODULES = {
    "arrays": ("Arrays",),
    "augmentation": (
        "Augmentation",
        "Chain",
        "ColourJitter",
        "Draw",
        "FeatureDropout",
        "GaussianBlur",
        "RandomAffine",
        "RandomResizedCrop",
        "RandomShift",
        "SimCLRViews",
        "TokenDropout",
    ),
    "batches": (
        "Batch",
        "Batches",
        "Share",
        "Views",
        "mixed",
        "some_inputs",
    ),
    "by_class": ("ByClass",),
    "corruptions": (
        "CORRUPTIONS",
        "CorruptedRows",
        "corrupted",
    ),
    "digits": ("Digits",),
    "episode_draw": (
        "EpisodeDraw",
        "EpisodeShape",
    ),
    "episodes": ("Episodes",),
    "hub": ("Hub",),
    "image_files": ("read_image",),
    "of_run": (
        "fingerprint",
        "parts_of",
        "parts_of_run",
    ),
    "patch_mix": (
        "Mix",
        "owned_by_partner",
    ),
    "samplers": (
        "Balanced",
        "Sampler",
        "Shuffled",
        "SimilarLength",
    ),
    "samples": (
        "LabelKind",
        "Rows",
        "Samples",
    ),
    "source": ("Source",),
    "split": (
        "Parts",
        "Split",
        "Stratified",
    ),
    "subset": (
        "Classes",
        "Fraction",
        "Labelled",
        "LongTail",
        "Subset",
    ),
    "text": ("Text",),
    "texts": (
        "Texts",
        "TokenRows",
    ),
    "torchvision": ("Torchvision",),
}


def __getattr__(name: str) -> Any:
    """Import all names when one is asked for: a command finds classes by what they inherit from."""
    if name not in __all__:
        raise AttributeError(f"module 'likewise.data' has no attribute {name!r}")
    for module, names in _MODULES.items():
        found = import_module(f"likewise.data.{module}")
        globals().update({one: getattr(found, one) for one in names})
    return globals()[name]
