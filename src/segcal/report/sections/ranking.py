"""Rankings: ranks with intervals, and paired tests over cases."""

import math

from segcal.report.aggregates import Number
from segcal.report.blocks import DataFile, Group, Section, Text
from segcal.report.context import Context
from segcal.report.findings.ranking import reference_note
from segcal.report.plots.ranks import draw_rank_maps, draw_significance
from segcal.report.rankings import FEW_CASES, Rankings
from segcal.report.table_model import Cell, Column, Row, Table, mark_best, metric_column
from segcal.report.text import count, join


def build(context: Context) -> Section | None:
    """Heat maps, the table of ranks, the matrix of tests, and the tests of the reference."""
    ranks = context.rankings
    if ranks is None:
        return None
    note = Text(f"{reference_note(context)} All pairs are in tables/comparisons.csv.", "note")
    summary = f"p-values of {context.title(ranks.reference)} against the others"
    explanation = (
        f"Paired Wilcoxon signed-rank tests over cases, Holm correction over all {ranks.family} "
        "tests. A cell counts the tests that the row wins and loses against the column: purple for "
        "more wins, orange for more losses, a dash for no significant difference."
    )
    return Section(
        "ranking",
        "Rankings",
        [
            Text(ranking_note(context, ranks)),
            draw_rank_maps(context, ranks),
            rank_table(context, ranks),
            Text("Significant differences", "heading"),
            Text(f"{explanation} {patients_note(context)}".rstrip()),
            draw_significance(context, ranks),
            Group([note, reference_tests(context, ranks)], summary=summary),
            DataFile("comparisons", ranks.tests),
        ],
    )


def ranking_note(context: Context, ranks: Rankings) -> str:
    """What the rankings are based on."""
    out = f"Calibration in region “{ranks.region}”; seeds averaged per case; low ranks are better. "
    if ranks.scores.total_undefined:
        out += (
            f"{count(ranks.scores.total_undefined, 'undefined value')}: a missed structure gets "
            "the worst value of any method. A structure that is in neither truth nor prediction "
            "is ignored, or gets the best value if another method predicts it. "
        )
    if ranks.intervals["sum_rank_low"].isna().all():
        out += f"No intervals: a dataset has fewer than {FEW_CASES} cases."
    else:
        out += "95 % intervals over resampled cases."
    if ranks.unpaired:
        names = join([context.study.datasets[d].title for d in ranks.unpaired])
        out += f" Not ranked, because no case was evaluated with all methods: {names}."
    if ranks.left_out:
        names = join([context.title(m) for m in ranks.left_out])
        out += f" Not ranked, because a dataset has no finished run of them: {names}."
    return out


def patients_note(context: Context) -> str:
    """A warning if tests over cases treat scans of one patient as independent."""
    comparisons = context.seed_comparisons[context.region]
    names = [context.study.datasets[name].title for name in sorted(comparisons.by_patient)]
    if not names:
        return ""
    below = " The comparisons over seeds, below, count a patient once." if comparisons else ""
    return (
        f"{join(names)}: a patient has several cases, which these tests treat as independent, so "
        f"their p-values are too small.{below}"
    )


def rank_table(context: Context, ranks: Rankings) -> Table:
    """Both ranks of each method with their intervals, best sum-rank first."""
    columns = (
        Column("sum_rank", "Sum-rank", "", "lower", 1),
        Column("sum_rank_interval", "95 % interval", text=True),
        Column("mean_case_rank", "Mean-case-rank", "", "lower", 2),
        Column("mean_case_rank_interval", "95 % interval", text=True),
    )
    rows = []
    for _, row in ranks.intervals.iterrows():
        undefined = int(row["undefined"])
        cells = []
        for name, digits in (("sum_rank", 1), ("mean_case_rank", 2)):
            cells.append(Cell(Number(float(row[name]))))
            low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
            known = not math.isnan(low)
            cells.append(Cell(text=f"{low:.{digits}f} to {high:.{digits}f}" if known else "–"))
        note = f"{undefined} undef." if undefined else ""
        method = str(row["method"])
        rows.append(Row(method, context.title(method), tuple(cells), False, note, undefined))
    caption = (
        "Sum-rank adds the ranks on each dataset and metric ("
        f"{', '.join(metric_column(m).title for m in ranks.scores.metrics)}); mean-case-rank is "
        f"the mean rank in single cases. Region “{ranks.region}”; undefined values: "
        f"“{ranks.scores.missing}”."
    )
    return mark_best(Table("ranks", "Ranks", columns, tuple(rows), caption, region=ranks.region))


def reference_tests(context: Context, ranks: Rankings) -> Table:
    """The paired tests of the reference against each other method; the page alone shows it."""
    columns = (
        Column("dataset", "Dataset", text=True),
        Column("metric", "Metric", text=True),
        Column("mean_difference", "Difference", digits=3),
        Column("better", "Better", text=True),
        Column("p_value", "p", digits=4),
        Column("p_holm", "p (Holm)", digits=4),
        Column("cases", "Cases", digits=0),
    )
    study, reference, rows = context.study, ranks.reference, []
    tests = ranks.tests[(ranks.tests[["method", "other"]] == reference).any(axis=1)]
    for _, test in tests.iterrows():
        first = test["method"] == reference
        other, better = str(test["other"] if first else test["method"]), str(test["better"])
        difference = float(test["mean_difference"])
        cells = (
            Cell(text=study.datasets[str(test["dataset"])].title),
            Cell(text=metric_column(str(test["metric"])).title),
            Cell(Number(difference if first else -difference), signed=True),
            Cell(text=context.title(better) if better in study.methods else "–"),
            Cell(Number(float(test["p_value"])), above_zero=True),
            Cell(Number(float(test["p_holm"])), above_zero=True),
            Cell(Number(float(test["cases"]))),
        )
        rows.append(Row(other, context.title(other), cells))
    title = context.title(reference)
    caption = (
        f"Difference: mean over cases of {title} minus the method. Calibration in region "
        f"“{ranks.region}”; “–” under Better: no difference."
    )
    return Table(
        "tests", f"Tests of {title}", columns, tuple(rows), caption, region=ranks.region,
        head="Against", saved=False,
    )  # fmt: skip
