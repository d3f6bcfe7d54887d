"""Ranks, tests and ranked values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.plain_studies import write_plain
from segcal.report import Context
from segcal.report.rankings import compute_rankings
from segcal.report.sections.main import main_table
from segcal.study import read_study


def test_ranks(context: Context) -> None:
    ranks = context.rankings
    assert ranks is not None
    assert ranks.scores.missing == "worst"
    assert set(ranks.sums["method"]) == {"ce_dice", "ls", "nacl"}
    assert len(ranks.tests) == 2 * 4 * 3  # datasets, metrics, pairs
    forced = replace(ranks, tests=ranks.tests.assign(p_holm=0.01))
    won, lost = forced.wins_and_losses("nacl", "ce_dice")
    assert (lost, won) == forced.wins_and_losses("ce_dice", "nacl")
    assert won > lost
    none = replace(ranks, tests=ranks.tests.assign(p_holm=0.5))
    assert none.wins_and_losses("nacl", "ce_dice") == (0, 0)
    other = compute_rankings(context.aggregates, "all")
    assert other is not None
    assert list(other.sums["sum_rank"]) != list(ranks.sums["sum_rank"])


def test_the_best_distance_is_the_one_that_ranks_first(tmp_path: Path) -> None:
    """A method that misses a structure has the least mean distance, but not the best rank."""
    distances = {"misses": 2.0, "finds": 3.0, "worse": 9.0}
    values: dict[tuple[str, int, str], dict[str | tuple[str, str], float]] = {
        (m, 0, f"c{i}"): {"dsc": 0.8, "hd95_mm": distance, "ece": 0.1}
        for m, distance in distances.items()
        for i in range(8)
    }
    for case in ("c0", "c1"):
        values["misses", 0, case] |= {"dsc": 0.0, "hd95_mm": float("nan")}
    context = Context(read_study(write_plain(tmp_path, values, metrics=["dsc", "hd95_mm", "ece"])))
    table = main_table(context, "all")
    assert table is not None
    column = [c.key for c in table.columns].index("hd95_mm")
    cells = {row.method: row.cells[column] for row in table.rows}
    assert cells["misses"].number.mean == 2.0
    ranked = np.mean([9.0, 9.0, *[2.0] * 6])  # the worst of any method, twice
    assert cells["misses"].ranked == pytest.approx(ranked)
    assert cells["misses"].remarks(2) == ["2 undef.", f"ranked as {ranked:.2f}"]
    assert cells["finds"].remarks(2) == []
    assert [cells[m].mark for m in ("finds", "misses", "worse")] == ["best", "second", ""]
    assert context.rankings is not None
    ranks = context.rankings.sums.set_index("method")["d/hd95_mm"]
    assert list(ranks[["finds", "misses", "worse"]]) == [1, 2, 3]
