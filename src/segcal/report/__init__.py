"""The report of a study: tables, figures and one page. It reads files only and needs no torch.

Import `Section`, `Text`, `Table`, `Figure` and the other blocks from here to write a section.
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.report.assurance_page import write_applied_page, write_checked_page
from segcal.report.blocks import Bullets, DataFile, Figure, Group, Section, Text
from segcal.report.context import Context
from segcal.report.findings.stated_confidence import sentences as stated_confidence
from segcal.report.findings.verdict import sentences as network_verdicts
from segcal.report.plots.style import new_figure
from segcal.report.sections import SECTIONS
from segcal.report.sections.volumes import findings as volume_findings
from segcal.report.table_model import Cell, Column, Row, Table
from segcal.report.writer import write_report

__all__ = [
    "SECTIONS", "Bullets", "Cell", "Column", "Context", "DataFile", "Figure", "Group", "Row",
    "Section", "Table", "Text", "network_verdicts", "new_figure", "stated_confidence",
    "volume_findings", "write_applied_page", "write_checked_page", "write_report",
]  # fmt: skip
