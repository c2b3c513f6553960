"""A data set on the Hub, by its name."""

from dataclasses import dataclass
from typing import final

from likewise.data.tabular import Tabular


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Hub(Tabular):
    """Images, numbers or texts with their labels, from a data set on the Hub; columns are read as `Table` reads them.

    Args:
        path: The data set's name, such as user/name.
        config: The configuration, where there are several.

    Raises:
        ValueError: There is no such data set, or it can't be reached; and as for `Table`.

    Memory:
        As of `Table`.

    Example:
        >>> Hub("uoft-cs/cifar100", label="fine_label").label
        'fine_label'
    """

    config: str | None = None
    inputs: list[str] | None = None

    local = False
