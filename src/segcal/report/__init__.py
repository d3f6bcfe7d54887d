"""The report of a study: tables, figures and one page. It reads files only and needs no torch.

Import `Section`, `Text`, `Table`, `Figure` and the other blocks from here to write a section.
"""

from segcal.core.checks import require_app

require_app(__name__)

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports

if TYPE_CHECKING:
    from segcal.report.blocks import Bullets, DataFile, Figure, Group, Section, Text
    from segcal.report.context import Context
    from segcal.report.plots.style import new_figure
    from segcal.report.sections import SECTIONS
    from segcal.report.table_model import Cell, Column, Row, Table
    from segcal.study import Study

__all__ = [
    "SECTIONS",
    "Bullets",
    "Cell",
    "Column",
    "Context",
    "DataFile",
    "Figure",
    "Group",
    "Row",
    "Section",
    "Table",
    "Text",
    "new_figure",
    "write_report",
]
_blocks = ("Bullets", "DataFile", "Figure", "Group", "Section", "Text")
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Context": "segcal.report.context",
        "SECTIONS": "segcal.report.sections",
        "new_figure": "segcal.report.plots.style",
        **dict.fromkeys(_blocks, "segcal.report.blocks"),
        **dict.fromkeys(("Cell", "Column", "Row", "Table"), "segcal.report.table_model"),
    },
    ["write_report"],
)


def write_report(
    study: "Path | str | Study",
    *,
    out: Path | str | None = None,
    region: str | None = None,
    reference: str | None = None,
    sections: Sequence[str] = (),
) -> Path:
    """Report a study: `index.html`, `tables/` and `figures/`; returns the path of index.html.

    The folder is written completely or not at all. An earlier report in it is replaced; any other
    existing folder is refused.

    Args:
        study: a folder that `segcal benchmark`, `segcal demo` or `segcal audit` wrote, or the
            `Study` that `read_study` returned for it, with its region and reference.
        out: folder of the report; by default `report` in the study.
        region: where calibration is measured; by default the study's region.
        reference: the method that is compared with all others; by default the one that the study
            names, else the one that ranks first.
        sections: further sections, as names or import paths `package.module:build`.
    """
    from segcal.report.writer import write

    source = Path(study) if isinstance(study, str) else study
    return write(source, Path(out) if out is not None else None, region, reference, sections)
