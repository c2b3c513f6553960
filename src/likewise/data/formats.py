"""Names of files, parts and columns that sources recognise. Nothing here loads torch."""

from collections.abc import Mapping, Sequence
from typing import Literal

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
# what data sets call their parts, and our number of the part
PART_NAMES: Mapping[str, int] = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("validation", "valid", "val", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
SEPARATED: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
# the loader of the `datasets` library for each kind of table
TABLES: Mapping[str, str] = {
    **dict.fromkeys(SEPARATED, "csv"),
    **dict.fromkeys((*JSON_LINES, ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
IMAGE_COLUMNS = ("image", "img")
TEXT_COLUMNS = ("text", "sentence", "document", "body")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
# row numbers that pandas adds to the columns
ROW_NUMBERS = ("Unnamed: ", "__index_level_")
# images that Pillow does not read, or only a newer one, or with an extension
UNREAD = (".heic", ".heif", ".hif", ".avif", ".jxl", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw")
_NO_IMAGES = {"BUFR", "GRIB", "HDF5"}  # data of other kinds, whose header is all that Pillow reads


def with_test_part(numbers: Sequence[int]) -> list[int]:
    """Return the numbers of parts; without a test part, the validation part is used for testing."""
    return [2 if number == 1 and 2 not in numbers else number for number in numbers]


def image_suffixes() -> set[str]:
    """Return the suffixes of the image files that can be read, with their dots."""
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    suffixes = Image.registered_extensions().items()  # which completes Image.OPEN
    return {suffix for suffix, form in suffixes if form in Image.OPEN and form not in _NO_IMAGES}
