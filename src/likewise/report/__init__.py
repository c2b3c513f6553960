"""What a run leaves to look at: its measurements, and one page that holds everything."""

from likewise.report.measurements import Encoded, Measurements, measure
from likewise.report.page import write_page

__all__ = ["Encoded", "Measurements", "measure", "write_page"]
