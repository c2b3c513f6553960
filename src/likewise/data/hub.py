"""Data that the `datasets` library reads: folders of images, CSV, JSON lines and Parquet, and data sets on the Hub."""

from typing import final

from likewise.data.samples import Samples
from likewise.data.source import Source
from likewise.data.table_reader import TableReader
from likewise.data.tables import open_tables


@final
class Hub(Source):
    r"""Images, numbers or texts with their labels, from local files or from the Hub.

    - A folder of images, with one folder per class; or folders train, test and optionally validation of these. What
      lies deeper belongs to the class; a warning counts it. A metadata.csv or metadata.jsonl next to the images, with
      a column file_name, can give the labels instead.
    - A CSV, TSV, JSON lines or Parquet file, or a folder of them named after their parts (train.csv, test.csv). Inputs
      are a column of images (bytes, or paths relative to the table's folder), a column of texts, or all columns of
      numbers and of lists of numbers, which together make a vector.
    - What `datasets` has saved to disk, or a data set on the Hub by its name.

    Labels are classes (integers, strings) or label sets (lists of them, lists of only 0 and 1, or strings of several
    with a separator). If there is a validation part and no test part, the validation part is used for testing. Images
    that cannot be read are left out, and so are links to nothing and kinds such as HEIC; warnings count and name them.

    Args:
        path: A file, a folder, or a name on the Hub; what looks like a path is never looked up there.
        config: The configuration, for a data set on the Hub with several.
        inputs: The columns to learn from. None: the image column if there is one, else the column called text,
            sentence, document or body, else all number columns.
        label: The column of labels, or "none" for no labels. None: the one named label, labels, fine_label, target or
            class.
        size: Side of the square that images are center-cropped and resized to, in pixels. None: all have the same size.
        memory: GiB of decoded images to hold in memory. A larger data set is decoded on demand.
        separator: What separates the labels of a sample, if the column's strings hold several, such as ",".

    Raises:
        ValueError: The path does not exist, no column fits, labels are missing, folders can be read in two ways,
            images differ in size and size is None, or size is below 1.

    Memory:
        The decoded images, one byte per pixel and channel, up to `memory`, and the paths of files. Tables are read
        through a temporary folder, which takes as much disk space as they do; it stays while their images are decoded
        on demand. That of a process that was killed is removed by the next. A CSV or TSV file is in memory while it is
        read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = tempfile.TemporaryDirectory()
        >>> table = Path(folder.name) / "flowers.csv"
        >>> _ = table.write_text("petal,sepal,class\n1.4,5.1,lily\n4.7,7.0,rose\n")
        >>> flowers = Hub(str(table)).load()
        >>> flowers.inputs[1], flowers.names
        (tensor([4.7000, 7.0000]), ('lily', 'rose'))
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str,
        config: str | None = None,
        inputs: list[str] | None = None,
        label: str | None = None,
        *,
        size: int | None = None,
        memory: float = 2.0,
        separator: str | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.reader = TableReader(path, inputs, label, size, memory, separator)

    def load(self) -> Samples:
        return self.reader.samples(open_tables(self.path, self.config, labelled=self.reader.label != "none"))
