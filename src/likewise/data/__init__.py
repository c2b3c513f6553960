"""Data: sources that read samples, splits that divide them, and batches of views."""

from likewise.data.arrays import Arrays, Digits
from likewise.data.augmentation import (
    Augmentation,
    Chain,
    ColourJitter,
    Draw,
    FeatureDropout,
    GaussianBlur,
    ImageAugmentation,
    NoAugmentation,
    RandomAffine,
    RandomResizedCrop,
    RandomShift,
    SimCLRViews,
    TokenDropout,
)
from likewise.data.batches import (
    Batch,
    Batches,
    Episodes,
    LocalBatch,
    Views,
    derive_seed,
    inputs_for_encoder,
    some_inputs,
)
from likewise.data.by_class import ByClass
from likewise.data.corruptions import CORRUPTIONS, CorruptedRows, corrupted
from likewise.data.episode_sampler import EpisodeSampler, EpisodeShape, Mix, owned_by_partner
from likewise.data.image_files import read_image
from likewise.data.lazy_inputs import Ids, LazyInputs
from likewise.data.listed import FromList
from likewise.data.pairs import Pairs
from likewise.data.preprocessing import ImagePreprocessing
from likewise.data.reload import fingerprint, parts_of, parts_of_run, same_source
from likewise.data.samplers import Balanced, Sampler, Shuffled, SimilarLength
from likewise.data.samples import EvalLabels, LabelKind, Negatives, Samples, Source, Superclasses
from likewise.data.shards import Shards
from likewise.data.split import Parts, Split, Stratified, never_apart
from likewise.data.subset import Classes, FewLabels, Fraction, Labelled, LabelNoise, LongTail, MinPerClass, Subset
from likewise.data.table import Folder, Hub, Table
from likewise.data.texts import Text, Texts, TokenRows
from likewise.data.torchvision import Torchvision

__all__ = [
    "CORRUPTIONS", "Arrays", "Augmentation", "Balanced", "Batch", "Batches", "ByClass", "Chain", "Classes",
    "ColourJitter", "CorruptedRows", "Digits", "Draw", "EpisodeSampler", "EpisodeShape", "Episodes", "EvalLabels",
    "FeatureDropout", "FewLabels", "Folder", "Fraction", "FromList", "GaussianBlur", "Hub", "Ids", "ImageAugmentation",
    "ImagePreprocessing", "LabelKind", "LabelNoise", "Labelled", "LazyInputs", "LocalBatch", "LongTail", "MinPerClass",
    "Mix", "Negatives", "NoAugmentation", "Pairs", "Parts", "RandomAffine", "RandomResizedCrop", "RandomShift",
    "Sampler", "Samples", "Shards", "Shuffled", "SimCLRViews", "SimilarLength", "Source", "Split", "Stratified",
    "Subset", "Superclasses", "Table", "Text", "Texts", "TokenDropout", "TokenRows", "Torchvision", "Views",
    "corrupted", "derive_seed", "fingerprint", "inputs_for_encoder", "never_apart", "owned_by_partner", "parts_of",
    "parts_of_run", "read_image", "same_source", "some_inputs",
]  # fmt: skip
