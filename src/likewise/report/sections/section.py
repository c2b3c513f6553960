"""Sections: the parts of a report page."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from likewise.report.elements import slug
from likewise.report.run_view import RunView


@final
@dataclass(frozen=True)
class Content:
    """The content of a section.

    Args:
        heading: Its heading, as text.
        sentence: What it shows and how to read it, as text.
        body: What `likewise.report.table` and its like return, figures by `likewise.diagnostics.plots.as_html`, or your
            own HTML as `markupsafe.Markup`, joined by `+`. A plain string is shown as text.
    """

    heading: str
    sentence: str = ""
    body: str = ""

    @property
    def anchor(self) -> str:
        """The id of the section's element."""
        return slug("section", self.heading.lower())


class Section(ABC):
    """A section of a page: say in `runs` how many runs it is for, and override `content`.

    Example:
        >>> class Seeds(Section):
        ...     runs = "any"
        ...
        ...     def content(self, views):
        ...         return Content("Seeds", ", ".join(str(view.seed) for view in views))
        >>> Seeds().fits(1), Seeds().fits(7)
        (True, True)
    """

    runs: ClassVar[Literal["one", "several", "any"]] = "one"
    """The pages that it is for: those of one run, those that compare several, or any."""

    @abstractmethod
    def content(self, views: Sequence[RunView]) -> Content | None:
        """Return what to show; None to leave the section out, such as pictures where samples are vectors.

        Args:
            views: The runs that the page is about, one or several, as `runs` says.
        """

    def fits(self, count: int) -> bool:
        """Tell whether the section is for a page of `count` runs."""
        return self.runs == "any" or (self.runs == "one") == (count == 1)
