"""A data set on the Hub, by its name."""

from typing import ClassVar, final

from likewise.data.image_files import Size
from likewise.data.preprocessing import Resize
from likewise.data.tabular import Tabular


@final
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

    local: ClassVar[bool] = False

    def __init__(
        self,
        path: str,
        config: str | None = None,
        inputs: list[str] | None = None,
        label: str | list[str] | None = None,
        *,
        size: Size = None,
        resize: Resize = "crop",
        memory: float = 2.0,
        separator: str | None = None,
        fine_label: str | None = None,
        store: int | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(path, label, size=size, resize=resize, memory=memory, separator=separator, store=store)
        self.fine_label = fine_label
        self.part = part
        self.config = config
        self.inputs = inputs
