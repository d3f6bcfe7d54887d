"""The command line: one thin command each, no logic; rooms are imported inside the commands."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from segcal import __version__
from segcal.cli_data import data_app, prepare_app
from segcal.cli_train import train

Frame = Any  # pandas.DataFrame, which is not imported to say so

app = typer.Typer(
    name="segcal",
    help="Segmentation networks whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(prepare_app, name="prepare")
app.add_typer(data_app, name="data")
app.command()(train)


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
    cases: Annotated[Path, typer.Argument(help="The long table of per-case values, CSV.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the tables; by default that of the CSV.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Repeat for several.")] = None,
    region: Annotated[str, typer.Option(help="Where calibration was measured.")] = "foreground",
    missing: Annotated[
        str, typer.Option(help="Undefined values: raise, worst or drop_case.")
    ] = "raise",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the cases.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
) -> None:
    """Rank methods: sum-rank, mean-case-rank, intervals, and paired tests against the best."""
    from segcal.metrics import ranking, significance

    scores = ranking.collect(
        _read_cases(cases),
        metrics=metric or ranking.PAPER_METRICS,
        region=region,
        missing=missing,
    )
    ranks = significance.bootstrap_ranks_of(scores, resamples, seed=seed)
    tables = {
        "ranks": ranks,
        "sum_rank": ranking.sum_rank_of(scores),
        "mean_case_rank": ranking.mean_case_rank_of(scores),
        "means": significance.bootstrap_means_of(scores, resamples, seed=seed),
        "comparisons": significance.compare_of(scores, reference=str(ranks["method"][0])),
    }
    for name, table in tables.items():
        _show(f"{name.replace('_', ' ')} (calibration in region {region})", table)
    typer.echo(f"{scores.undefined} values missing or undefined (policy: {missing})")
    _write_csvs(out or cases.parent, tables)


def _read_cases(path: Path) -> Frame:
    import pandas as pd

    from segcal.metrics.table import check_table

    try:
        # Names such as "001" or "NA" are names, not numbers or gaps.
        names = dict.fromkeys(("run", "method", "seed", "dataset", "case", "label", "region"), str)
        table = pd.read_csv(
            path, dtype=names, keep_default_na=False, na_values={"value": ["", "nan", "NaN"]}
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected {path} to be a CSV table, but got: {error}") from error
    return check_table(table, str(path))


def _show(title: str, table: Frame) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title)
    for name in table.columns:
        grid.add_column(name, justify="left" if table[name].dtype.kind in "OTU" else "right")
    for row in table.itertuples(index=False):
        grid.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    Console().print(grid)


def _write_csvs(folder: Path, tables: dict[str, Frame]) -> None:
    """Each file whole or not at all: all exist under temporary names before any is renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".segcal-") as draft:
        for name, table in tables.items():
            table.to_csv(Path(draft) / f"{name}.csv", index=False)
        for name in tables:
            (Path(draft) / f"{name}.csv").replace(folder / f"{name}.csv")


def main() -> None:
    """Run the command line; wrong input becomes one clear line and exit code 2.

    SEGCAL_DEBUG=1 shows the traceback instead.
    """
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("SEGCAL_DEBUG"):
            raise
        typer.echo(f"segcal: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
