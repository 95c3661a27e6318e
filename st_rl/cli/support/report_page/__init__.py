"""The report of a run: a self-contained HTML file."""

from st_rl.cli.support.report_page.page import ReportData, SectionError, build_page
from st_rl.cli.support.report_page.run_page import build_run_page

__all__ = ["ReportData", "SectionError", "build_page", "build_run_page"]
