"""The command line: one thin command each, no logic; rooms are imported inside the commands."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from segcal import __version__
from segcal.cli import benchmark, calibrate, data, demo, evaluate, nnunet, report, train

app = typer.Typer(
    name="segcal",
    help="Segmentation networks whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.prepare_app, name="prepare")
app.add_typer(data.data_app, name="data")
app.add_typer(nnunet.nnunet_app, name="nnunet")
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(evaluate.predict)
app.command()(benchmark.benchmark)
app.command()(demo.demo)
app.command()(calibrate.calibrate)
app.command()(calibrate.apply)
app.command()(calibrate.audit)
app.command()(report.report)


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


@app.command()
def rank(
    cases: Annotated[
        list[Path],
        typer.Argument(help="The long table of per-case values, CSV; several are joined."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the tables; by default that of a single CSV.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Rank these alone; repeat for several.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Repeat for several.")] = None,
    region: Annotated[str, typer.Option(help="Where calibration was measured.")] = "foreground",
    missing: Annotated[
        str, typer.Option(help="Undefined values: raise, worst or drop_case.")
    ] = "raise",
    patient: Annotated[
        str | None,
        typer.Option(help="Count patients, not cases: regular expression for one in their names."),
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the cases.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace tables made from another CSV.")
    ] = False,
) -> None:
    """Rank methods: sum-rank, mean-case-rank, intervals, and paired tests against the best."""
    from segcal.cli import rank as cli_rank

    cli_rank.run(
        cases,
        out,
        methods=method or None,
        metrics=metric or None,
        region=region,
        missing=missing,
        patient=patient,
        resamples=resamples,
        seed=seed,
        overwrite=overwrite,
    )


def main() -> None:
    """Run the command line; wrong input becomes one clear line and exit code 2.

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
