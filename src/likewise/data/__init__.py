"""Data: sources that read samples, subsets and splits that part them, and the order in which batches take them."""

from likewise.data.arrays import Arrays
from likewise.data.by_class import ByClass
from likewise.data.digits import Digits
from likewise.data.hub import Hub
from likewise.data.samplers import Balanced, Sampler, Shuffled
from likewise.data.samples import Rows, Samples
from likewise.data.source import Source
from likewise.data.split import Parts, Split, Stratified
from likewise.data.subset import Classes, Fraction, LongTail, Subset
from likewise.data.torchvision import Torchvision

__all__ = [
    "Arrays",
    "Balanced",
    "ByClass",
    "Classes",
    "Digits",
    "Fraction",
    "Hub",
    "LongTail",
    "Parts",
    "Rows",
    "Sampler",
    "Samples",
    "Shuffled",
    "Source",
    "Split",
    "Stratified",
    "Subset",
    "Torchvision",
]
