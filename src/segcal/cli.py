"""The command line: one thin command each, no logic; rooms are imported inside the commands."""

import os
import sys
from typing import Annotated

import typer

from segcal import __version__
from segcal.cli_data import data_app, prepare_app

app = typer.Typer(
    name="segcal",
    help="Segmentation networks whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(prepare_app, name="prepare")
app.add_typer(data_app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; wrong input becomes one clear line and exit code 2.

    SEGCAL_DEBUG=1 shows the traceback instead.
    """
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("SEGCAL_DEBUG"):
            raise
        typer.echo(f"segcal: {error}", err=True)
        sys.exit(2)
