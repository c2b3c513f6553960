"""Pages: what a run left, and how several runs compare, each in one file."""

from likewise.report.page import write_page
from likewise.report.subject import Subject

__all__ = ["Subject", "write_page"]
