"""What `segcal rank` does: read the cases, rank, print, and write the tables."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segcal.core.files import staged_files, write_json

if TYPE_CHECKING:
    from rich.table import Table

Frame = Any  # pandas.DataFrame, which is not imported to say so

TABLES = ("ranks", "sum_rank", "mean_case_rank", "means", "comparisons")
# Says which CSV and which options the tables beside it came from.
SOURCE = "rank.json"


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
    run(
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


def run(
    files: Sequence[Path],
    out: Path | None,
    *,
    methods: Sequence[str] | None,
    metrics: Sequence[str] | None,
    region: str,
    missing: str,
    patient: str | None,
    resamples: int,
    seed: int,
    overwrite: bool,
) -> None:
    """Rank the methods of `files`, print the tables and write them to `out`."""
    from segcal.stats import patients, ranking, significance

    if out is None and len(files) > 1:
        raise ValueError("Expected argument `out` (--out) beside several tables, but got none.")
    folder = files[0].parent if out is None else out
    rows = _together(files)
    _check_folder(files, folder, overwrite)
    scores = ranking.collect(
        _only(rows, methods),
        metrics=metrics or ranking.PAPER_METRICS,
        region=region,
        missing=missing,
    )
    where = f"calibration in region {region}, missing: {missing}"
    if patient is not None:
        of = {name: patients.patients_of(each, patient) for name, each in scores.cases.items()}
        scores = patients.by_patient(scores, of)
        where += f", {sum(map(len, scores.cases.values()))} patients in the place of cases"
    ranks = significance.bootstrap_ranks_of(scores, resamples, seed=seed)
    best = str(ranks["method"][0])
    tables = {
        "ranks": ranks,
        "sum_rank": ranking.sum_rank_of(scores),
        "mean_case_rank": ranking.mean_case_rank_of(scores),
        "means": significance.bootstrap_means_of(scores, resamples, seed=seed),
        "comparisons": significance.compare_of(scores, reference=best),
    }
    for name, table in tables.items():
        shown = _by_dataset(table, scores.metrics) if name == "sum_rank" else table
        _show(f"{name.replace('_', ' ')} ({where})", shown.drop(columns=["region", "missing"]))
    typer.echo(
        f"{scores.total_undefined} values missing, undefined or infinite (policy: {missing})"
    )
    if len(scores.methods) > 1:
        typer.echo(
            f"Comparisons are with {best}, chosen as the best on the same "
            f"{'cases' if patient is None else 'patients'}: they favour it."
        )
    source = {
        "cases": [os.path.relpath(path, folder) for path in files],
        "methods": scores.methods,
        "metrics": scores.metrics,
        "region": region,
        "missing": missing,
        "patient": patient,
        "undefined": scores.total_undefined,
        "resamples": resamples,
        "seed": seed,
    }
    _write(folder, tables, source)


def _check_folder(files: Sequence[Path], folder: Path, overwrite: bool) -> None:
    """Refuse to overwrite the input ever, and tables of another input unless told."""
    written = [folder / f"{name}.csv" for name in TABLES] + [folder / SOURCE]
    for cases in files:
        if cases.resolve() in [path.resolve() for path in written]:
            raise ValueError(
                f"Expected argument `out` to be a folder where no table overwrites {cases}, but "
                f"got {folder}, where {cases.name} is written."
            )
    there = [path for path in written if path.exists()]
    if not there or overwrite:
        return
    source = _source_of(folder)
    if {(folder / name).resolve() for name in source} != {path.resolve() for path in files}:
        raise ValueError(
            f"Expected argument `out` to be a folder without tables made from another file, but "
            f"got {folder} with {there[0].name} from {', '.join(source) or 'an unknown file'}. Say "
            "--overwrite to replace them."
        )


def _source_of(folder: Path) -> list[str]:
    try:
        found = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = found.get("cases") if isinstance(found, dict) else None
    names = [names] if isinstance(names, str) else names  # as one file was noted before
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _together(files: Sequence[Path]) -> Frame:
    """The rows of all files; a value that two of them hold would count twice."""
    import pandas as pd

    table = pd.concat([_read_cases(path) for path in files], ignore_index=True)
    twice = table.duplicated([name for name in table.columns if name != "value"])
    if len(files) > 1 and twice.any():
        row = table[twice].iloc[0]
        raise ValueError(
            f"Expected {', '.join(map(str, files))} to be of different runs, but more than one has "
            f"{row['metric']} of {row['method']} in case {row['case']}."
        )
    return table


def _read_cases(path: Path) -> Frame:
    import pandas as pd

    from segcal.metrics.table import check_table, exactly

    try:
        # Names such as "001" or "NA" are names, not numbers or gaps.
        names = dict.fromkeys(
            ("run", "method", "seed", "dataset", "case", "label", "region", "metric"), str
        )
        table = pd.read_csv(
            path, dtype=names, keep_default_na=False, na_values={"value": ["", "nan", "NaN"]},
            **exactly(),
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected {path} to be a CSV table, but got: {error}") from error
    return check_table(table, str(path))


def _only(table: Frame, methods: Sequence[str] | None) -> Frame:
    """The rows of some methods; None is all."""
    from segcal.core.checks import check_choice

    if methods is None:
        return table
    known = list(dict.fromkeys(table["method"]))
    for name in methods:
        check_choice("method", name, known)
    return table[table["method"].isin(methods)]


def _by_dataset(table: Frame, metrics: list[str]) -> Frame:
    """The wide table of sum-ranks with one row per method and dataset: it fits a screen."""
    import pandas as pd

    rows = []
    datasets = dict.fromkeys(
        name.rsplit("/", 1)[0] for name in table.columns if name.rsplit("/", 1)[-1] in metrics
    )
    for _, row in table.iterrows():
        for dataset in datasets:
            ranks = {metric: row[f"{dataset}/{metric}"] for metric in metrics}
            rows.append({"method": row["method"], "dataset": dataset, **ranks})
        rows[-1]["sum_rank"] = row["sum_rank"]
    return pd.DataFrame(rows).assign(region="", missing="")


def _show(title: str, table: Frame) -> None:
    from rich.console import Console

    grid = _grid(title, table)
    console = Console()
    # Into a file or a pipe a table is as wide as it has to be: nothing is cut.
    (console if console.is_terminal else Console(width=1000)).print(grid)


def _grid(title: str, table: Frame) -> "Table":
    """A value with `_low` and `_high` beside it (or `low` and `high`) becomes "22 [18, 27]"."""
    from rich.table import Table

    spans = {name.removesuffix("_low"): name for name in table.columns if name.endswith("_low")}
    columns: dict[str, list[str]] = {}
    for name in table.columns:
        if name in ("low", "high") or name.endswith(("_low", "_high")):
            continue
        values = [_word(value) for value in table[name]]
        low = spans.get(name, "low" if name == "mean" and "low" in table.columns else None)
        if low is not None:
            high = low.removesuffix("low") + "high"
            pairs = zip(values, table[low].map(_word), table[high].map(_word), strict=True)
            values = [f"{v} [{a}, {b}]" if a else v for v, a, b in pairs]
        columns[name] = values
    grid = Table(title=title, title_justify="left")
    for name in columns:
        grid.add_column(name, justify="left" if table[name].dtype.kind in "OTU" else "right")
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*(word.replace("[", r"\[") for word in row))
    return grid


def _word(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)


def _write(folder: Path, tables: dict[str, Frame], source: dict[str, Any]) -> None:
    """Each file whole or not at all: all exist under temporary names before any is renamed."""
    with staged_files(folder) as draft:
        for name, table in tables.items():
            table.to_csv(draft / f"{name}.csv", index=False)
        write_json(draft / SOURCE, source)
