"""Rankings: ranks with intervals, and paired tests over cases."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from segcal.report.aggregates import Number
from segcal.report.blocks import DataFile, Figure, Group, Section, Text
from segcal.report.context import Context
from segcal.report.findings.ranking import reference_note
from segcal.report.plots.style import INK, MUTED, RULE, new_figure, short_titles
from segcal.report.rankings import ALPHA, FEW_CASES, Rankings
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
        f"{join(names)}: a patient has several cases, which these tests and the intervals of ranks "
        "treat as independent, so the p-values are too small and the intervals too narrow."
        f"{below}"
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
        f"“{ranks.region}”; “–” under Better: no difference, or mean and signed ranks favor "
        "different methods."
    )
    return Table(
        "tests", f"Tests of {title}", columns, tuple(rows), caption, region=ranks.region,
        head="Against", saved=False,
    )  # fmt: skip


def draw_rank_maps(context: Context, ranks: Rankings) -> Figure:
    """Sum-rank on each dataset and metric, and mean-case-rank; best method on top."""
    titles = {name: context.study.datasets[name].title for name in ranks.datasets}
    names = {metric: metric_column(metric).title for metric in ranks.scores.metrics}
    columns = {f"{d}/{m}": f"{titles[d]}\n{names[m]}" for d in titles for m in names}
    rows = len(ranks.sums)
    width = 4.2 + 0.62 * len(columns) + 0.75 * len(titles)
    figure = new_figure(width, 1.0 + 0.3 * rows)
    left, right = figure.subplots(1, 2, width_ratios=[len(columns) + 1, len(titles) + 1])
    sums, cases = ranks.sums, ranks.cases
    _heat_map(left, sums[list(columns)].to_numpy(float), sums["sum_rank"], "{:g}")
    left.set_xticks(range(len(columns) + 1), [*columns.values(), "sum"])
    each = cases[[f"{d}/mean_case_rank" for d in ranks.datasets]].to_numpy(float)
    _heat_map(right, each, cases["mean_case_rank"], "{:.2f}")
    right.set_xticks(range(len(titles) + 1), [*titles.values(), "all"])
    for axes, table, title in ((left, sums, "Sum-rank"), (right, cases, "Mean-case-rank")):
        axes.set_yticks(range(rows), short_titles(map(context.title, table["method"])))
        axes.set_title(title, loc="left", fontweight="bold")
    alt = f"Heat maps of ranks; the best method by sum-rank is {context.title(ranks.best)}"
    return Figure("ranks", figure, alt)


def _heat_map(axes: Axes, each: Any, total: Any, form: str) -> None:
    """Cells colored by rank, rank 1 darkest; the total in its own column."""
    color = colormaps["Blues"]
    methods, columns = each.shape
    _table_axes(axes, methods, columns + 1)
    levels = 0.85 - 0.8 * (each - 1) / max(methods - 1, 1)
    axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(methods + 1) - 0.5, levels,
        cmap=color, vmin=0, vmax=1, edgecolors="face", linewidth=0.2,
    )  # fmt: skip
    for (i, j), value in np.ndenumerate(each):
        shade = _readable(color(levels[i, j]))
        axes.text(j, i, form.format(value), ha="center", va="center", color=shade)
    for i, value in enumerate(total):
        axes.text(columns, i, form.format(value), ha="center", va="center", fontweight="bold")


def _table_axes(axes: Axes, rows: int, columns: int) -> None:
    """Cells of size 1 around whole numbers, the first row on top, headings above."""
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(length=0, labelcolor=INK)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)


def _readable(face: Sequence[float]) -> str:
    """Black or white, whichever has more contrast with a color (WCAG's relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in face[:3]]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#10151a" if light > 0.18 else "#fefefe"


def draw_significance(context: Context, ranks: Rankings) -> Figure:
    """Tests won and lost by the method in the row against that in the column, after correction."""
    methods = list(ranks.sums["method"])
    names, n = short_titles(map(context.title, methods)), len(methods)
    most = max(1, len(ranks.datasets) * len(ranks.scores.metrics))
    figure = new_figure(max(4.8, 2.2 + 0.62 * n), 1.3 + 0.34 * n)
    axes = figure.subplots()
    _table_axes(axes, n, n)
    for i, method in enumerate(methods):
        for j, other in enumerate(methods):
            if i == j:
                continue
            won, lost = ranks.wins_and_losses(method, other)
            face: Any = colormaps["PuOr"](0.5 + 0.42 * (won - lost) / most)
            text, shade, alpha = f"{won}:{lost}", _readable(face), 1.0
            if not won and not lost:
                text, face, shade, alpha = "–", RULE, MUTED, 0.4
            axes.fill_between(
                [j - 0.48, j + 0.48], i - 0.46, i + 0.46, color=face, lw=0, alpha=alpha
            )
            axes.text(j, i, text, ha="center", va="center", color=shade)
    axes.set_yticks(range(n), names)
    axes.set_xticks(range(n), names, rotation=40, ha="left", rotation_mode="anchor")
    axes.set_xlabel(f"won:lost by the row, of {most} tests each (Holm, α = {ALPHA:g})")
    alt = f"Matrix of significant differences between {n} methods, won and lost by each row"
    return Figure("significance", figure, alt)
