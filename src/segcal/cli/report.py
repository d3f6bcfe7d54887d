"""`segcal report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[Path, typer.Argument(help="Folder written by benchmark, demo or audit.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; by default `report` in the study.")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(help="Region of the calibration errors; by default the study's."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Method that is compared with all others; by default the one that the study "
            "names, else the one that ranks first."
        ),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(help="Further section, as package.module:build; can be repeated."),
    ] = None,
) -> None:
    """Report a study: index.html, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)."""
    from segcal.report import write_report

    page = write_report(study, out=out, region=region, reference=reference, sections=section or ())
    typer.echo(f"report: {page}")
