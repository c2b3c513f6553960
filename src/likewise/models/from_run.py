"""The encoder of an earlier run, to continue training."""

from pathlib import Path
from typing import Any, final

from jaxtyping import Float, Shaped
from torch import Tensor

from likewise.data.rows import Rows
from likewise.models.encoder import Encoder
from likewise.parts import Spec
from likewise.runs import Run


@final
class FromRun(Encoder):
    """The encoder trained by another run, with its weights, mean and standard deviation.

    Args:
        input_shape: The shape of one input, which must be the shape that the run's encoder was made for; the command
            fills it in from the data.
        run: The run's folder.

    Raises:
        ValueError: The folder is not a run's, the run has not trained an encoder yet, or inputs have another shape.

    Attributes:
        encoder: The encoder.
        spec: The class and the arguments it was made with.
    """

    def __init__(self, input_shape: tuple[int, ...], run: Path | str) -> None:
        super().__init__(input_shape or (1,))
        opened = Run.open(run)
        self.spec: Spec = opened.encoder_spec
        expected = tuple(self.spec["init_args"].get("input_shape", input_shape))
        if expected != tuple(input_shape):
            raise ValueError(
                f"expected inputs of shape {expected}, which the encoder of {run} was made for, "
                f"got {tuple(input_shape)}: give data of that shape; data.size resizes images"
            )
        encoder: Any = opened.encoder()
        self.encoder: Encoder = encoder.train()

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self.encoder.feature_dim

    def encode(self, inputs: Tensor | Rows, *args: Any, **kwargs: Any) -> Float[Tensor, "n d"]:
        """Encode inputs as the run's encoder does; see `Encoder.encode`."""
        return self.encoder.encode(inputs, *args, **kwargs)

    def observe(self, inputs: Tensor | Rows) -> None:
        """Keep the mean and standard deviation of the run's training part."""

    def forward(self, inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""
        return self.encoder(inputs)
