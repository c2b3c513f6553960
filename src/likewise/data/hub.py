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
        inputs: The columns to learn from. None: the image column if there is one, else the column called text,
            sentence, document or body, else all number columns.
        label: The column of labels, a list of columns of 0 and 1, or "none" for no labels. None: the one named label,
            labels, fine_label, target or class.
        size: Side of the square that images are resized to, in pixels, or height and width. None: all have one size.
        resize: How images of another ratio are brought to it: "crop" takes their middle, "pad" adds black, "squash"
            stretches; see `ImagePreprocessing`.
        memory: GiB of decoded images to hold in memory. A larger data set is decoded on demand.
        separator: What separates the labels of a sample, if the column's strings hold several, such as ",".

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
    ) -> None:
        super().__init__(path, label, size=size, resize=resize, memory=memory, separator=separator)
        self.config = config
        self.inputs = inputs
