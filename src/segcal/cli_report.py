"""`segcal report`: a thin command over `segcal.report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[Path, typer.Argument(help="Folder of a study.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; by default `report` in the study.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Where calibration is read; by default the study's own.")
    ] = None,
) -> None:
    """Report a study: index.html, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)."""
    from segcal.report import write_report

    typer.echo(f"report: {write_report(study, out=out, region=region)}")
