"""The report of a study: tables, figures and one page. Reads files only; knows no torch."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segcal.study import Study

__all__ = ["write_report"]


def write_report(
    study: "Path | str | Study",
    *,
    out: Path | str | None = None,
    region: str | None = None,
    reference: str | None = None,
) -> Path:
    """Report a study: `index.html`, `tables/` and `figures/`; returns the path of index.html.

    Reads files only. The folder appears whole or not at all; an earlier report in it is replaced,
    any other folder is left alone.

    Args:
        study: a folder that `segcal benchmark`, `segcal demo` or `segcal audit` wrote, or what
            `read_study` read of it (with its region and reference).
        out: where to; by default `report` in the study.
        region: where calibration is read; by default the study's own.
        reference: the method that is compared with the others; by default the one that the study
            names, else the one that ranks first.
    """
    from segcal.report.write import write  # draws: matplotlib is loaded here

    folder = Path(study) if isinstance(study, str) else study
    return write(folder, Path(out) if out is not None else None, region, reference)
