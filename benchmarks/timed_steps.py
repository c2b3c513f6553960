"""A callback of Lightning that notes when each step ended."""

import time
from typing import Any, ClassVar

from lightning.pytorch import Callback


class Ends(Callback):
    """Note the seconds at which steps end, for whoever runs in this process."""

    seconds: ClassVar[list[float]] = []

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter())
