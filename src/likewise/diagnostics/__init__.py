"""What a loss does to the embedding: its geometry, its gradient, and pictures of both."""

from likewise.diagnostics.cells import cell_matches
from likewise.diagnostics.geometry import alignment, collapsed, similarity_histogram, two_dimensional_map, uniformity
from likewise.diagnostics.gradients import AnchorGradients, anchor_gradients
from likewise.diagnostics.label_sets import grouped, push_weights
from likewise.diagnostics.mining import HardestShares, hardest_shares, strength_by_similarity
from likewise.diagnostics.snapshot import Snapshot, load_snapshots, save_snapshots

__all__ = [
    "AnchorGradients",
    "HardestShares",
    "Snapshot",
    "alignment",
    "anchor_gradients",
    "cell_matches",
    "collapsed",
    "grouped",
    "hardest_shares",
    "load_snapshots",
    "push_weights",
    "save_snapshots",
    "similarity_histogram",
    "strength_by_similarity",
    "two_dimensional_map",
    "uniformity",
]
