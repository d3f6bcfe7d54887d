"""Ranks, best values, the reference, and significant differences."""

import math

import pandas as pd

from segcal.metrics import find_metric
from segcal.report.context import Context
from segcal.report.rankings import (
    ALPHA,
    Rankings,
    seed_count,
    significant,
    significant_over_cases_only,
)
from segcal.report.table_model import metric_column
from segcal.report.text import count, join
from segcal.stats import distinct_hypotheses

# Where the reference was named -> what that means for its tests.
_NAMED = {
    "plan": "named in the plan before any run was evaluated, not selected by its results",
    "late": "named in the plan after runs had been evaluated, possibly with their results known",
    "study": "named in study.json, which does not tell whether results were known then",
    "report": "named for this report, possibly with the results known",
}


def first_place(context: Context) -> list[str]:
    """The methods that rank first by sum-rank and by mean-case-rank."""
    ranks = context.rankings
    if ranks is None:
        return []
    sums = ranks.sums
    first = sums[sums["sum_rank"] == sums["sum_rank"].min()]
    interval = ranks.intervals[ranks.intervals["method"] == ranks.best]
    low, high = (float(interval[f"sum_rank_{end}"].iloc[0]) for end in ("low", "high"))
    span = "" if math.isnan(low) else f"; 95 % interval over cases {low:g} to {high:g}"
    least = len(ranks.datasets) * len(ranks.scores.metrics)
    by_case = ranks.cases.iloc[0]
    return [
        f"First by sum-rank: {join([context.title(m) for m in first['method']])} "
        f"({first['sum_rank'].iloc[0]:g}; possible {least} to {least * len(sums)}{span}). "
        f"First by mean-case-rank: {context.title(str(by_case['method']))} "
        f"({by_case['mean_case_rank']:.2f}; {len(sums)} methods)."
    ]


def best_of_datasets(context: Context) -> list[str]:
    """The best and worst DSC and ECE of each dataset."""
    out, methods = [], context.study.compared
    for dataset in context.datasets:
        parts = []
        for metric in (m for m in context.study.metrics if find_metric(m).key in ("dsc", "ece")):
            means = {m: context.aggregates.overall(dataset.name, m, metric).mean for m in methods}
            known = {m: round(v, 3) for m, v in means.items() if not math.isnan(v)}
            if known and (len(known) > 1 or len(methods) == 1):
                parts.append(_extremes(context, known, metric, dataset.name))
        if parts:
            out.append(f"{dataset.title}: {'; '.join(parts)}.")
    return out


def _extremes(context: Context, values: dict[str, float], metric: str, dataset: str) -> str:
    """The best and the worst of the printed values; equal ones are named together."""
    name = metric_column(metric).title
    if not find_metric(metric).per_structure:
        name += f" in region “{context.region}”"
    pick = (max, min) if find_metric(metric).better == "higher" else (min, max)
    best, worst = (choose(values.values()) for choose in pick)
    first, last = (
        join([context.title(m) for m, v in values.items() if v == end]) for end in (best, worst)
    )
    if best == worst:
        return f"{name} {best:.3f} ({f'all {len(values)} methods' if len(values) > 1 else first})"
    text = f"best {name} {best:.3f} ({first}), worst {worst:.3f} ({last})"
    leader = _ranked_first(context, values, metric, dataset)
    if leader and values[leader] != best:
        text += (
            f"; with undefined values as the worst, {context.title(leader)} "
            f"({values[leader]:.3f}) ranks first"
        )
    return text


def _ranked_first(
    context: Context, values: dict[str, float], metric: str, dataset: str
) -> str | None:
    """The method whose mean is the best once undefined values are replaced as in the ranking."""
    if context.rankings is None:
        return None
    ranked = {m: context.rankings.ranked_value(dataset, m, metric) for m in values}
    if all(math.isnan(value) for value in ranked.values()):
        return None
    replaced = {m: values[m] if math.isnan(value) else value for m, value in ranked.items()}
    pick = max if find_metric(metric).better == "higher" else min
    return pick(replaced, key=lambda m: replaced[m])


def reference_note(context: Context) -> str:
    """How the method that is compared with all others was selected."""
    named, ranks = context.study.named, context.rankings
    assert ranks is not None
    title = context.title(ranks.reference)
    if named is not None and named.method == ranks.reference:
        return f"{title} was {_NAMED[named.where]}."
    return f"{title} was selected because it ranks first on the same cases, which favors it."


def reference_place(context: Context) -> list[str]:
    """The rank of the named reference; nothing if none was named."""
    named, ranks = context.study.named, context.rankings
    if named is None:
        return []
    title = context.title(named.method)
    if ranks is None:
        return [f"{title} cannot be compared: fewer than two methods can be ranked."]
    if named.method != ranks.reference:
        return [
            f"{title} was {_NAMED[named.where]}, but is not ranked, because a dataset has no "
            f"finished run of it; {context.title(ranks.reference)} is compared instead."
        ]
    by_sum = _place(ranks.sums, "sum_rank", named.method, "{:g}")
    by_case = _place(ranks.cases, "mean_case_rank", named.method, "{:.2f}")
    return [
        f"{reference_note(context)} Place {by_sum} by sum-rank, place {by_case} by mean-case-rank, "
        f"of {len(ranks.sums)} methods."
    ]


def _place(table: pd.DataFrame, column: str, method: str, form: str) -> str:
    """The place of a method, the first of those that equal ranks share, and its rank."""
    value = float(table.loc[table["method"] == method, column].iloc[0])
    shared = "shared, " if int((table[column] == value).sum()) > 1 else ""
    return f"{1 + int((table[column] < value).sum())} ({shared}{form.format(value)})"


def significance(context: Context) -> list[str]:
    """How many tests over cases the reference wins and loses."""
    ranks = context.rankings
    if ranks is None:
        return []
    tests, reference = ranks.tests, ranks.reference
    mine = tests[(tests["method"] == reference) | (tests["other"] == reference)]
    tested = distinct_hypotheses(mine)
    others = [m for m in ranks.scores.methods if m != reference]
    titles = {m: metric_column(m).title for m in ranks.scores.metrics}
    metrics = [title for m, title in titles.items() if m in set(tested["metric"])]
    same = [title for title in titles.values() if title not in metrics]
    rivals = context.title(others[0]) if len(others) == 1 else f"{len(others)} other methods"
    out = f"{context.title(reference)} against {rivals} over cases"
    if not len(tested):
        return [f"{out}: all values are equal."]
    significant_tests = tested[tested["p_holm"] < ALPHA]
    won = int((significant_tests["better"] == reference).sum())
    unclear = int((significant_tests["better"] == "neither").sum())
    out += (
        f": {won} of {count(len(tested), 'test')} significantly better, "
        f"{len(significant_tests) - won - unclear} significantly worse ({', '.join(metrics)}; "
        f"{count(len(ranks.datasets), 'dataset')}; Wilcoxon, Holm over all {ranks.family} tests, "
        f"α = {ALPHA:g})."
    )
    if unclear:
        out += (
            f" In {count(unclear, 'test')} with a significant result, mean and signed ranks favor "
            "different methods, so neither is called better."
        )
    if same:
        out += f" {join(same)}: identical, no test."
    elif len(tested) < len(mine):
        out += f" {count(len(mine) - len(tested), 'comparison')} of equal masks not tested again."
    return [out + _few_cases(context, ranks)]


def _few_cases(context: Context, ranks: Rankings) -> str:
    """A warning if the number of cases does not allow a significant result.

    The smallest p-value of Wilcoxon's exact test with n cases is 2/2^n.
    """
    few = [
        f"{len(cases)} cases of {context.study.datasets[dataset].title}"
        for dataset, cases in ranks.scores.cases.items()
        if 2.0 ** (1 - len(cases)) * ranks.family > ALPHA
    ]
    end = "hardly any difference there can be significant after correction"
    return f" With {join(few)} {end}." if few else ""


def _are(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'}"


def seed_variance(context: Context) -> list[str]:
    """How many differences are significant once seed variance is included."""
    comparisons = context.seed_comparisons.get(context.region)
    if not comparisons:
        return []
    rows, reference = distinct_hypotheses(comparisons.judged), comparisons.reference
    found = rows[[significant(row) for _, row in rows.iterrows()]]
    won = int((found["better"] == reference).sum())
    over_cases = int((rows["p_cases_holm"] < ALPHA).sum())
    lost = sum(significant_over_cases_only(row) for _, row in rows.iterrows())
    return [
        f"{context.title(reference)} against the other methods over seeds and cases: {won} of "
        f"{count(len(rows), 'difference')} significantly better, {len(found) - won} significantly "
        f"worse ({seed_count(rows)}, calibration in region “{comparisons.region}”, Holm over all "
        f"{comparisons.family}, α = {ALPHA:g}). Over cases alone {_are(over_cases)} "
        f"significant, of which {_are(lost)} not once seed variance is included."
    ]


def unshared_cases(context: Context) -> list[str]:
    """Datasets with cases that only some methods were evaluated on."""
    out = []
    for dataset in context.datasets:
        methods = context.methods_of(dataset.name)
        shared, total = context.aggregates.shared_cases(dataset.name, methods)
        ranked, cases = context.aggregates.shared_cases(dataset.name, context.study.compared)
        effect = ""
        if not ranked:
            effect = "; without a common case there is no ranking and no test"
        elif ranked < cases:
            effect = "; in rankings and tests a missing case gets the worst value of any method"
        if shared < total:
            out.append(
                f"{dataset.title}: {shared} of {total} cases were evaluated with all "
                f"{len(methods)} methods, so means are over different cases{effect}."
            )
    return out
