"""Ranks and tests as tables."""

import math
from typing import Any

from segcal.report.numbers import Number, Numbers
from segcal.report.ranks import Ranks
from segcal.report.table import Cell, Column, Row, Table, marked, metric_column


def rank_table(numbers: Numbers, ranks: Ranks) -> Table:
    """Both ranks of each method with their intervals, best sum-rank first."""
    columns = (
        Column("sum_rank", "Sum-rank", "", "lower", 1),
        Column("sum_rank_interval", "95 % interval", text=True),
        Column("mean_case_rank", "Mean-case-rank", "", "lower", 2),
        Column("mean_case_rank_interval", "95 % interval", text=True),
    )
    rows = []
    for _, row in ranks.intervals.iterrows():
        method = str(row["method"])
        lost = int(row["undefined"])
        cells = []
        for name, digits in (("sum_rank", 1), ("mean_case_rank", 2)):
            cells.append(Cell(Number(float(row[name]))))
            low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
            known = not math.isnan(low)
            cells.append(Cell(text=f"{low:.{digits}f} to {high:.{digits}f}" if known else "–"))
        note = f"{lost} undef." if lost else ""
        title = numbers.study.methods[method].title
        rows.append(Row(method, title, tuple(cells), note=note, undefined=lost))
    caption = (
        f"Sum-rank adds the ranks on each dataset and metric ("
        f"{', '.join(metric_column(m).title for m in ranks.scores.metrics)}); mean-case-rank is "
        f"the mean rank in single cases. Region “{ranks.region}”, undefined values: "
        f"“{ranks.scores.missing}”."
    )
    return marked(Table("ranks", "Ranks", columns, tuple(rows), caption, region=ranks.region))


def test_table(numbers: Numbers, ranks: Ranks) -> Table:
    """The paired tests of the reference against each other method."""
    columns = (
        Column("dataset", "Dataset", text=True),
        Column("metric", "Metric", text=True),
        Column("mean_difference", "Difference", digits=3),
        Column("better", "Better", text=True),
        Column("p_value", "p", digits=4),
        Column("p_holm", "p (Holm)", digits=4),
        Column("cases", "Cases", digits=0),
    )
    mine, methods = ranks.reference, numbers.study.methods
    rows = []
    for _, test in ranks.tests.iterrows():
        if mine not in (test["method"], test["other"]):
            continue
        other = str(test["other"] if test["method"] == mine else test["method"])
        rows.append(Row(other, methods[other].title, _test_cells(numbers, test, mine)))
    caption = (
        f"Difference: mean over cases of {methods[mine].title} minus the method. Calibration in "
        f"region “{ranks.region}”; “–” under Better: no difference."
    )
    title = f"Tests of {methods[mine].title}"
    return Table("tests", title, columns, tuple(rows), caption, region=ranks.region, head="Against")


def _test_cells(numbers: Numbers, test: Any, mine: str) -> tuple[Cell, ...]:
    better = str(test["better"])
    sign = 1 if test["method"] == mine else -1
    return (
        Cell(text=numbers.study.datasets[str(test["dataset"])].title),
        Cell(text=metric_column(str(test["metric"])).title),
        Cell(Number(sign * float(test["mean_difference"])), signed=True),
        Cell(text=numbers.study.methods[better].title if better in numbers.study.methods else "–"),
        Cell(Number(float(test["p_value"])), above_zero=True),
        Cell(Number(float(test["p_holm"])), above_zero=True),
        Cell(Number(float(test["cases"]))),
    )
