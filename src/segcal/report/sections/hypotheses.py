"""The claims of the plan, and whether the results bear them out."""

import math
from collections.abc import Iterator

from segcal.metrics import ranking_direction
from segcal.report.aggregates import Number
from segcal.report.blocks import Section, Text
from segcal.report.context import Context
from segcal.report.rankings import FEW_CASES
from segcal.report.table_model import Cell, Column, Row, Table, metric_column
from segcal.report.text import signed
from segcal.stats import compare_with_random_effects
from segcal.study import Hypothesis

_RULES = {"better": "gain > {}", "not_worse": "gain > −{}", "equal": "|gain| < {}"}
_TEXT = (
    "Each claim was written in the plan with the rule that decides it. The gain is the difference "
    "between two methods, positive where the first is better, with its 95 % interval over seeds "
    "and patients. A claim holds if the whole interval obeys the rule, and fails if all of it "
    "breaks the rule. Intervals are not corrected for the number of claims. "
    f"With fewer than {FEW_CASES} patients nothing is decided."
)


def build(context: Context) -> Section | None:
    """One table; a row for each claim and dataset."""
    rows = [row for each in context.study.info.hypotheses for row in _rows(context, each)]
    if not rows:
        return None
    columns = (
        Column("dataset", "Dataset", text=True),
        Column("measured", "Measured", text=True),
        Column("rule", "Rule", text=True),
        Column("gain", "Gain", digits=4),
        Column("seeds", "Seeds", digits=0),
        Column("patients", "Patients", digits=0),
        Column("verdict", "Verdict", text=True),
    )
    table = Table("hypotheses", "Hypotheses", columns, tuple(rows), head="Claim")
    return Section("hypotheses", "Hypotheses", [Text(_TEXT), table])


def _rows(context: Context, claim: Hypothesis) -> Iterator[Row]:
    study = context.study
    table = study.table[study.table["method"].isin([claim.method, claim.other])]
    if set(table["method"]) != {claim.method, claim.other}:
        return
    found = compare_with_random_effects(
        table, reference=claim.method, metrics=[claim.metric], region=claim.region,
        patients={name: dataset.patients for name, dataset in study.datasets.items()},
    )  # fmt: skip
    sign = 1 if ranking_direction(claim.metric) == "higher" else -1
    note = "written when results existed" if claim.late else ""
    column = metric_column(claim.metric)
    measured = f"{column.title}, {context.title(claim.method)} − {context.title(claim.other)}"
    rows = {str(row["dataset"]): row for _, row in found.iterrows()}
    for name in study.datasets:
        if name not in rows or (claim.datasets and name not in claim.datasets):
            continue
        row = rows[name]
        ends = sorted(sign * float(row[end]) for end in ("low", "high"))
        low, high = ends if row["cases"] >= FEW_CASES else (math.nan, math.nan)
        interval = "" if math.isnan(low) else f"[{_end(low)}, {_end(high)}]"
        cells = (
            Cell(text=study.datasets[name].title),
            Cell(text=f"{measured}, region {row['region']}"),
            Cell(text=_RULES[claim.rule].format(f"{claim.margin:g}")),
            Cell(Number(sign * float(row["mean_difference"])), signed=True, after=interval),
            Cell(Number(float(row["seeds"]))),
            Cell(Number(float(row["cases"]))),
            Cell(text=claim.verdict(low, high)),
        )
        yield Row("", claim.claim, cells, note=note)


def _end(value: float) -> str:
    """An end of an interval; one near 0 with the digits that show its sign, which decides."""
    digits = 4
    while value and abs(value) < 0.5 * 10**-digits and digits < 9:
        digits += 1
    return signed(value, digits)
