"""The report: one HTML file that shows a run and needs nothing else."""

from st_rl.cli.support.report_page.page import ReportData, build_page

__all__ = ["ReportData", "build_page"]
