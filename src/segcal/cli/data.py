"""`segcal data`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.text import count

app = typer.Typer(no_args_is_help=True, help="Inspect a prepared set.")


@app.command()
def check(
    folders: Annotated[list[Path], typer.Argument(help="A prepared set, or several.")],
    figure: Annotated[
        Path | None, typer.Option(help="Write a contact sheet to this PNG file; one set only.")
    ] = None,
) -> None:
    """Verify prepared sets (hashes, shapes, labels, splits, leaks) and summarize them.

    Of several sets, scans that are in two of them are listed.
    """
    from segcal.core.errors import PathError
    from segcal.data import at_most, check_dataset, find_copies, open_dataset, write_contact_sheet

    if figure is not None and len(folders) > 1:
        raise ValueError("Expected argument `figure` with one set only.")
    reports = {folder: check_dataset(folder) for folder in folders}
    for folder, report in reports.items():
        if len(folders) > 1:
            typer.echo(f"{folder}:")
        width = max(len(title) for title, _ in report.summary)
        for title, value in report.summary:
            typer.echo(f"{title:<{width}}  {value}")
        for problem in at_most(list(report.problems)):
            opt.warn(problem)
        valid = [case.name for case in report.cases]
        if figure is not None and valid:
            try:
                shown = write_contact_sheet(open_dataset(folder), figure, cases=valid)
            except PathError as error:
                raise PathError(figure, error.problem, "give --figure a writable file") from error
            typer.echo(f"{'figure':<{width}}  {figure} ({shown} cases)")
    copies = find_copies(reports)
    for line in at_most(copies):
        typer.echo(f"warning: {line}")
    if any(report.problems for report in reports.values()):
        raise typer.Exit(2)
    result = count(len(copies), "warning") if copies else "no problems"
    typer.echo(f"{'check':<{width}}  {result}")
