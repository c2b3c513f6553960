"""Pages: what a run left, and how several runs compare, each in one file."""

from likewise.report.comparison import compared
from likewise.report.page import write_page
from likewise.report.row import Row, rows_as_csv, rows_as_markdown
from likewise.report.settings import in_settings, settings_of
from likewise.report.subject import Subject
from likewise.report.verdict import verdict

__all__ = [
    "Row",
    "Subject",
    "compared",
    "in_settings",
    "rows_as_csv",
    "rows_as_markdown",
    "settings_of",
    "verdict",
    "write_page",
]
