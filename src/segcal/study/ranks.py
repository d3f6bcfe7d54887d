"""`ranks.csv` (one row per method, best first), the other tables of a ranking, and `rank.json`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal.core.documents import read_json
from segcal.core.errors import PathError
from segcal.core.files import staged_files, write_json
from segcal.stats import CaseScores, Ranking
from segcal.study.cases_table import write_frame

if TYPE_CHECKING:
    import pandas as pd

RANK_COLUMNS = (
    "method", "sum_rank", "sum_rank_low", "sum_rank_high",
    "mean_case_rank", "mean_case_rank_low", "mean_case_rank_high", "dropped_draws",
    "metrics", "region", "missing", "undefined",
)  # fmt: skip
_TABLES = ("ranks", "sum_rank", "mean_case_rank", "means", "comparisons")
RANKS, _SOURCE = "ranks.csv", "rank.json"


def write_ranks(
    folder: Path, ranks: "pd.DataFrame", scores: CaseScores, cases: Sequence[Path], **options: Any
) -> None:
    """Write `ranks.csv` from the result of `segcal.stats.bootstrap_ranks`, and `rank.json`."""
    _write_source(folder, scores, cases, options)
    _write_ranks(folder, ranks)


def _write_ranks(folder: Path, ranks: "pd.DataFrame") -> None:
    write_frame(folder / RANKS, ranks[list(RANK_COLUMNS)])


def write_ranking(
    folder: Path, ranking: Ranking, cases: Sequence[Path], options: dict[str, Any]
) -> None:
    """Write all tables of a ranking and `rank.json`; either all files are replaced or none.

    `cases` are the tables that were ranked, `options` further entries of `rank.json`.
    """
    with staged_files(folder) as draft:
        for name, table in ranking.tables.items():
            write_frame(draft / f"{name}.csv", table)
        _write_ranks(draft, ranking.ranks)
        # First: a kill while the tables move leaves a folder that the same command may complete.
        _write_source(folder, ranking.scores, cases, options)


def _write_source(
    folder: Path, scores: CaseScores, cases: Sequence[Path], options: dict[str, Any]
) -> None:
    source = {
        "cases": [os.path.relpath(path, folder) for path in cases],
        "methods": scores.methods,
        "metrics": scores.metrics,
        "region": scores.region,
        "missing": scores.missing,
        "undefined": scores.total_undefined,
        **options,
    }
    write_json(folder / _SOURCE, source)


def check_ranking_folder(folder: Path, cases: Sequence[Path], overwrite: bool) -> None:
    """Raise if a ranking of `cases` must not be written to `folder`.

    The input is never overwritten; tables of another input are overwritten only on request.
    """
    written = [folder / name for name in (*(f"{table}.csv" for table in _TABLES), _SOURCE)]
    inputs = {path.resolve() for path in cases}
    for path in written:
        if path.resolve() in inputs:
            raise PathError(path, "is the input and would be overwritten", "choose another --out")
    existing = [path for path in written if path.exists()]
    if not existing or overwrite:
        return
    source = _source_of(folder)
    if {(folder / name).resolve() for name in source} != inputs:
        problem = f"was computed from {', '.join(source) or 'an unknown table'}"
        remedy = "pass --overwrite to replace it, or choose another --out"
        raise PathError(existing[0], problem, remedy)


def _source_of(folder: Path) -> list[str]:
    try:
        names = read_json(folder / _SOURCE)["cases"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
