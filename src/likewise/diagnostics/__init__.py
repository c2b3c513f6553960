"""What a loss has done to the embedding: its geometry, and pictures of it."""

from likewise.diagnostics.geometry import alignment, collapsed, similarity_histogram, two_dimensional_map, uniformity

__all__ = ["alignment", "collapsed", "similarity_histogram", "two_dimensional_map", "uniformity"]
