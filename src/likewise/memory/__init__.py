"""Running state for contrastive learning, in registered buffers: ``state_dict`` saves it and ``.to()`` moves it.

State is passed to a loss as an argument; nothing here depends on a loss. Inside a DistributedDataParallel module the
buffers of rank 0 overwrite all others at every forward, unless it is built with ``broadcast_buffers=False``. A queue
inside such a module should gather (``gather_distributed=True``): all ranks then hold the same queue.
"""

from likewise.memory.momentum_encoder import MomentumEncoder
from likewise.memory.queue import Queue
from likewise.memory.tables import FeatureCache, Prototypes

__all__ = ["FeatureCache", "MomentumEncoder", "Prototypes", "Queue"]
