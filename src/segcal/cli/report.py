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
    reference: Annotated[
        str | None,
        typer.Option(
            help="Method that is compared with the others; by default the one that the study "
            "names, else the one that ranks first."
        ),
    ] = None,
) -> None:
    """Report a study: index.html, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)."""
    from segcal.report import write_report

    page = write_report(study, out=out, region=region, reference=reference)
    typer.echo(f"report: {page}")
