"""Pages in one file each: the results of a run, and the comparison of several runs."""

from likewise.report.comparison import Row, compared, rows_as_csv, rows_as_markdown, verdict
from likewise.report.elements import definitions, folded, heading, paragraphs, table
from likewise.report.page import write_page
from likewise.report.run_view import Content, RunView, Section
from likewise.report.sections import SECTIONS
from likewise.report.setting import in_settings, settings_of

__all__ = [
    "SECTIONS", "Content", "Row", "RunView", "Section", "compared", "definitions", "folded", "heading", "in_settings",
    "paragraphs", "rows_as_csv", "rows_as_markdown", "settings_of", "table", "verdict", "write_page",
]  # fmt: skip
