"""Running state of contrastive learning, all of it in registered buffers: ``state_dict`` and ``.to()`` carry it.

State is an argument of a loss: what stands here knows none. Inside a DistributedDataParallel module the buffers of
rank 0 overwrite those of the others at every forward, unless it is built with ``broadcast_buffers=False``: a queue
there should gather (``gather_distributed=True``), so that all hold the same.
"""

from likewise.memory.feature_cache import FeatureCache
from likewise.memory.momentum_encoder import MomentumEncoder
from likewise.memory.prototypes import Prototypes
from likewise.memory.queue import Queue

__all__ = ["FeatureCache", "MomentumEncoder", "Prototypes", "Queue"]
