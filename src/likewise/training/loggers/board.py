"""What a tool shows of a training besides its curves, and what it is told."""

from dataclasses import dataclass
from typing import Any, Protocol, final

from jaxtyping import Float, UInt8
from torch import Tensor

from likewise.diagnostics import plots
from likewise.evaluation import Features
from likewise.evaluation.label_words import label_words

MOST_NAMED = 24  # classes that have a colour of their own
PAIRS = ("same class", "different classes")


@final
@dataclass(frozen=True)
class Seen:
    """The encoder's features of some validation samples, after an epoch.

    Args:
        epoch: Epochs trained so far.
        step: The last step of the epoch.
        features: The features.
        places: Where each sample lies on a map, (N, 2).
        pictures: Small pictures of the samples, in colour, from 0 to 1, (N, 3, height, width); None where they are no
            images.
        similarities: Edges of bins between −1 and 1, and the share of each bin among pairs of one class and among pairs
            of two, see `similarity_histogram`; None where samples have no classes.
    """

    epoch: int
    step: int
    features: Features
    places: Float[Tensor, "n 2"]
    pictures: Float[Tensor, "n 3 h w"] | None = None
    similarities: tuple[Float[Tensor, " edges"], Float[Tensor, " bins"], Float[Tensor, " bins"]] | None = None

    @property
    def map(self) -> Any:
        """The samples on their map, as a Plotly figure: hovering names their labels and rows."""
        words = label_words(self.features)
        few = self.features.label_kind == "classes" and len(self.features.names) <= MOST_NAMED
        kinds: dict[str, list[plots.Point]] = {}
        for (x, y), name, row in zip(self.places.tolist(), words, self.features.numbers.tolist(), strict=True):
            kinds.setdefault(name if few else "samples", []).append(
                plots.Point(x, y, ", ".join(filter(None, [name, f"row {row}"])))
            )
        return plots.scatter(kinds, "first principal component", "second")


class Board(Protocol):
    """A tool that shows a training."""

    def views(self, picture: UInt8[Tensor, "h w 4"]) -> None:
        """Show some samples with their views: red, green, blue and opacity."""
        ...

    def epoch(self, seen: Seen) -> None:
        """Show what the encoder makes of validation samples after an epoch."""
        ...
