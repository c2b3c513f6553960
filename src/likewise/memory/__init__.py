"""Running state of contrastive learning, all of it in registered buffers: ``state_dict`` and ``.to()`` carry it.

State is an argument of a loss and never its own: what stands here knows no loss.
"""

from likewise.memory.feature_cache import FeatureCache
from likewise.memory.momentum_encoder import MomentumEncoder
from likewise.memory.prototypes import Prototypes
from likewise.memory.queue import Queue

__all__ = ["FeatureCache", "MomentumEncoder", "Prototypes", "Queue"]
