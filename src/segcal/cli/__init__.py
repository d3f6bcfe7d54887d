"""The command line: one module per command; each parses arguments and calls one function."""

import os
import sys
from typing import Annotated

import typer

from segcal import __version__
from segcal.cli import (
    apply,
    audit,
    benchmark,
    calibrate,
    data,
    demo,
    evaluate,
    list,
    nnunet,
    predict,
    prepare,
    rank,
    report,
    train,
)

app = typer.Typer(
    name="segcal",
    help="Segmentation networks whose confidence can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(prepare.app, name="prepare")
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("calibrate")(calibrate.calibrate)
app.command("apply")(apply.apply)
app.command("audit")(audit.audit)
app.command("benchmark")(benchmark.benchmark)
app.command("rank")(rank.rank)
app.command("report")(report.report)
app.command("demo")(demo.demo)
app.command("list")(list.list_names)
app.add_typer(nnunet.app, name="nnunet")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"segcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line; invalid input becomes one line on stderr and exit code 2.

    SEGCAL_DEBUG=1 shows the traceback instead.
    """
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("SEGCAL_DEBUG"):
            raise
        reason = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = f"{error.filename}: {error.strerror}"
        typer.echo(f"segcal: {' '.join(reason.split())}", err=True)
        sys.exit(2)
