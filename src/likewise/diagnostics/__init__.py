"""Diagnostics of an embedding under a loss: its geometry, its gradient, and pictures of both.

A ValueError is raised for features and labels that are not numbers, not finite or of different lengths, and for
parameters out of range.
"""

from likewise.diagnostics.geometry import (
    Hubness,
    alignment,
    class_distances,
    grouped,
    hubness,
    push_weights,
    similarity_histogram,
    two_dimensional_map,
    uniformity,
)
from likewise.diagnostics.gradients import (
    AnchorGradients,
    HardestShares,
    StrengthByNegatives,
    anchor_gradients,
    hardest_shares,
    strength_by_negatives,
    strength_by_similarity,
)
from likewise.diagnostics.hard_pairs import HardPairs, hardest_pairs
from likewise.diagnostics.steps import Descent, Snapshot, descent, load_snapshots, save_snapshots
from likewise.diagnostics.unit_rows import collapsed, effective_rank, singular_values, spread

__all__ = [
    "AnchorGradients", "Descent", "HardPairs", "HardestShares", "Hubness", "Snapshot", "StrengthByNegatives",
    "alignment", "anchor_gradients", "class_distances", "collapsed", "descent", "effective_rank", "grouped",
    "hardest_pairs", "hardest_shares", "hubness", "load_snapshots", "push_weights", "save_snapshots",
    "similarity_histogram", "singular_values", "spread", "strength_by_negatives", "strength_by_similarity",
    "two_dimensional_map", "uniformity",
]  # fmt: skip
