"""`segcal rank`: rank the methods of tables of cases."""

from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.cli import _options as opt

Frame = Any  # pandas.DataFrame; pandas must not load with `segcal --help`


def rank(
    cases: Annotated[
        list[Path],
        typer.Argument(help="Tables with one value per row (cases.csv); several are combined."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the tables; by default the folder of the only input."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Rank only these methods; repeat for several.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Rank by these metrics: registered names or package.module:Object; repeat for "
            "several. [default: dsc, hd95, ece, cece]"
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            help="Region of the calibration errors. [default: the region of the study that holds "
            "the table, else all]"
        ),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Undefined values: raise, worst or drop_case.")
    ] = "raise",
    patient: Annotated[
        str | None,
        typer.Option(
            help="Rank patients instead of cases: a regular expression that finds the patient in "
            "the name of a case."
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Resamples of the cases for intervals of ranks.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace tables that were computed from other input."),
    ] = False,
) -> None:
    """Rank methods: sum-rank, mean-case-rank, intervals, and paired tests against the best."""
    from segcal.stats import REQUIRED_COLUMNS, rank_methods
    from segcal.study import check_ranking_folder, read_cases_tables, region_beside, write_ranking

    if out is None and len(cases) > 1:
        raise ValueError("--out is required when several tables are given")
    folder = cases[0].parent if out is None else out
    table = read_cases_tables(cases, required=REQUIRED_COLUMNS)
    check_ranking_folder(folder, cases, overwrite)
    region = region or region_beside(cases)
    try:
        ranking = rank_methods(
            table, methods=method or None, metrics=metric or None, region=region,
            missing=missing,  # type: ignore[arg-type]  # checked there
            patient=patient, resamples=resamples, seed=seed,
        )  # fmt: skip
    except ValueError as error:
        if str(error).startswith("Expected argument"):
            raise
        raise ValueError(f"{', '.join(map(str, cases))}: {error}") from error
    scores = ranking.scores
    subjects = "cases" if patient is None else "patients"
    options = {"patient": patient, "resamples": resamples, "seed": seed}
    write_ranking(folder, ranking, cases, options)
    where = f"calibration in region {region}, missing: {missing}"
    if patient is not None:
        where += f", {sum(map(len, scores.cases.values()))} patients instead of cases"
    for name, each in ranking.tables.items():
        if each.empty:  # comparisons of a single method
            continue
        shown = ranking.ranks_by_dataset() if name == "sum_rank" else each
        hidden = [c for c in ("metrics", "region", "missing") if c in shown.columns]
        _print_frame(f"{name.replace('_', ' ')} ({where})", shown.drop(columns=hidden))
    typer.echo(
        f"{scores.total_undefined} values missing, undefined or infinite (policy: {missing})"
    )
    if len(scores.methods) > 1:
        typer.echo(
            f"Tests are against {ranking.best}, chosen as the best on the same {subjects}, which "
            "favors it."
        )


def _print_frame(title: str, table: Frame) -> None:
    """Print a table; columns `x_low` and `x_high` are shown with `x` as "22 [18, 27]"."""
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    columns = _columns(table)
    for name in columns:
        grid.add_column(name, justify="left" if table[name].dtype.kind in "OTU" else "right")
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*(cell.replace("[", r"\[") for cell in row))
    opt.print_table(grid)


def _columns(table: Frame) -> dict[str, list[str]]:
    out = {}
    for name in table.columns:
        if name in ("low", "high") or name.endswith(("_low", "_high")):
            continue
        prefix = "" if name == "mean" else f"{name}_"  # the interval of `mean` is `low` and `high`
        cells = [_text(value) for value in table[name]]
        if f"{prefix}low" in table.columns:
            low, high = (map(_text, table[f"{prefix}{end}"]) for end in ("low", "high"))
            spans = zip(cells, low, high, strict=True)
            cells = [f"{cell} [{a}, {b}]" if a else cell for cell, a, b in spans]
        out[name] = cells
    return out


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)
