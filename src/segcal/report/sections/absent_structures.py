"""Structures that are absent in some scans: are they found, and marked where they are not?

There the DSC is 1 for an empty mask and 0 for any other, so a mean DSC over all scans mixes the
quality of outlines with the decision whether to mark anything.
"""

import pandas as pd

from segcal.metrics import POOLED
from segcal.report.aggregates import Number
from segcal.report.blocks import Section, optional_section
from segcal.report.context import Context
from segcal.report.table_model import Cell, Column, Table, mark_best
from segcal.report.text import count
from segcal.stats import means_over_seeds
from segcal.study import Dataset

_TEXT = (
    "Structures that the truth lacks in some scans, where the DSC is 1 for an empty mask and 0 for "
    "any other. “Missed”: scans with the structure in which the mask does not touch it. “Marked”: "
    "scans without it in which the mask is not empty."
)
# Of more structures only these are named in the findings.
_MOST_SENTENCES = 4
_COLUMNS = (
    Column("existing", "scans", digits=0, group="structure exists"),
    Column("dsc", "DSC", better="higher", group="structure exists"),
    Column("missed", "missed", "%", better="lower", digits=1, group="structure exists"),
    Column("absent", "scans", digits=0, group="structure is absent"),
    Column("marked", "marked", "%", better="lower", digits=1, group="structure is absent"),
)


def build(context: Context) -> Section | None:
    """A table per dataset that has such a structure; one row per network and structure."""
    blocks = context.by_dataset(
        lambda dataset: [absent_table(context, dataset)], headings=len(context.datasets) > 1
    )
    title = "Structures that are absent in some scans"
    return optional_section("absent", title, blocks, text=_TEXT, menu="Absent")


def absent_table(context: Context, dataset: Dataset) -> Table | None:
    """None if every structure exists in all scans or in none, or volumes were not measured."""
    found = rates(context, dataset)
    if not found:
        return None
    methods = [m for m in context.listed if any(method == m for method, _ in found)]
    rows = [
        context.row(method, label, (Cell(numbers.get(column.key, Number())) for column in _COLUMNS))
        for method in methods
        for (name, label), numbers in found.items()
        if name == method
    ]
    title = f"Absent structures: {dataset.title}"
    caption = "Means over scans; mean ± standard deviation over seeds." * (
        context.aggregates.seeds > 1
    )
    table = Table(f"absent_{dataset.name}", title, _COLUMNS, tuple(rows), caption, head="Structure")
    return mark_best(table) if len(found) > 1 else table


def rates(context: Context, dataset: Dataset) -> dict[tuple[str, str], dict[str, Number]]:
    """(method, structure) -> the numbers of the columns."""
    rows = context.study.table
    rows = rows[(rows["dataset"] == dataset.name) & (rows["case"] != POOLED)]
    true = rows[rows["metric"] == "true_volume_ml"]
    volumes = true.groupby(["case", "label"], observed=True)["value"].max()
    exists = (volumes > 0)[volumes.notna()].rename("exists").reset_index()
    some = exists.groupby("label", observed=True)["exists"].transform("nunique") > 1
    exists = exists[some].astype({"case": str, "label": str})
    if exists.empty:
        return {}
    rows = rows[rows["metric"].isin(["dsc", "predicted_volume_ml"])]
    rows = rows.astype({"case": str, "label": str, "metric": str}).merge(exists)
    dsc, mask = (rows[rows["metric"] == m] for m in ("dsc", "predicted_volume_ml"))
    inside, outside = dsc[dsc["exists"]], mask[~mask["exists"]]
    each = [
        inside,
        inside.assign(metric="missed", value=100.0 * (inside["value"] == 0)),
        outside.assign(metric="marked", value=100.0 * (outside["value"] > 0)),
    ]
    means = means_over_seeds(pd.concat(each), ["method", "label", "metric"])
    out: dict[tuple[str, str], dict[str, Number]] = {}
    for (method, label, metric), mean, spread, seeds, cases, _ in means.itertuples(name=None):
        numbers = out.setdefault((str(method), str(label)), {})
        numbers[metric] = Number(float(mean), float(spread), 0, int(seeds), int(cases))
        if metric != "missed":
            numbers["existing" if metric == "dsc" else "absent"] = Number(float(cases))
    return out


def findings(context: Context) -> list[str]:
    """How often networks mark such structures where they are absent, those most often first."""
    out = []
    for dataset in context.datasets:
        found = rates(context, dataset)
        sentences: list[tuple[float, str]] = []
        for label in dict.fromkeys(label for _, label in found):
            shown = {
                context.title(method): numbers
                for (method, name), numbers in found.items()
                if name == label and method in context.listed and {"dsc", "marked"} <= set(numbers)
            }
            if not shown:
                continue
            least, most = (
                pick(shown, key=lambda m: shown[m]["marked"].mean) for pick in (min, max)
            )
            absent, existing = (int(shown[most][key].mean) for key in ("absent", "existing"))
            ends = [f"{shown[m]['marked'].mean:.0f} % ({m})" for m in dict.fromkeys((least, most))]
            rates_shown = {f"{numbers['marked'].mean:.0f} %" for numbers in shown.values()}
            if len(shown) > 1 and len(rates_shown) == 1:
                ends = [f"{rates_shown.pop()} (all {len(shown)} methods)"]
            text = (
                f"{dataset.title}: {label} is absent in {absent} of {absent + existing} scans, and "
                f"is marked in {' to '.join(ends)} of these. The mean DSC counts an empty mask "
                "there as 1."
            )
            sentences.append((shown[most]["marked"].mean, text))
        sentences.sort(key=lambda one: one[0], reverse=True)
        out += [text for _, text in sentences[:_MOST_SENTENCES]]
        if len(sentences) > _MOST_SENTENCES:
            rest = count(len(sentences) - _MOST_SENTENCES, "further structure")
            out.append(f"{dataset.title}: {rest} under “Absent”.")
    return out
