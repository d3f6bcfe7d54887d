"""`segcal data`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Inspect a prepared set.")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A prepared set.")],
    figure: Annotated[
        Path | None, typer.Option(help="Write a contact sheet to this PNG file.")
    ] = None,
) -> None:
    """Verify a prepared set (hashes, shapes, labels, splits, leaks) and summarize it."""
    from segcal.core.errors import PathError
    from segcal.data import check_dataset, open_dataset, write_contact_sheet

    report = check_dataset(folder)
    width = max(len(title) for title, _ in report.summary)
    for title, value in report.summary:
        typer.echo(f"{title:<{width}}  {value}")
    for problem in report.problems:
        typer.echo(f"segcal: {problem}", err=True)
    valid = [case.name for case in report.cases]
    if figure is not None and valid:
        try:
            shown = write_contact_sheet(open_dataset(folder), figure, cases=valid)
        except PathError as error:
            raise PathError(figure, error.problem, "give --figure a writable file") from error
        typer.echo(f"{'figure':<{width}}  {figure} ({shown} cases)")
    if report.problems:
        raise typer.Exit(2)
    typer.echo(f"{'check':<{width}}  no problems")
