"""The tables of the report, from the numbers of the study."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from segcal.metrics import (
    BALANCED_GAP,
    base_metric,
    confidence_verdict,
    is_per_structure,
)
from segcal.report.numbers import Number, Numbers
from segcal.report.paper import CITATION, published, row_of
from segcal.report.table import Cell, Column, Row, Table, marked, metric_column
from segcal.study import Dataset

TRUTH = ("truth_ece", "truth_cece", "truth_mae", "truth_kl")
# A gap between confidence and accuracy below this is called none.
SMALL_GAP = BALANCED_GAP


def main_table(numbers: Numbers, region: str) -> Table | None:
    """The main table: the metrics of the study per dataset and main method.

    What calibrators made of a single one stands below it; of several, in a table of its own.
    """
    main, posthoc = (numbers.study.in_group(group) for group in ("main", "posthoc"))
    shown = main if len(main) > 1 else [*main, *posthoc]
    rules = {posthoc[0]} if len(main) == 1 and posthoc else set()
    return _table(numbers, region, shown, name="main", title="Main results", rules=rules)


def group_table(numbers: Numbers, region: str, group: str) -> Table | None:
    """The methods of a group, below the method that they vary."""
    study = numbers.study
    members = study.in_group(group)
    if not members:
        return None
    titles = {
        "ablation": ("ablation", "Ablation: what makes NACL work"),
        "prior": ("priors", "Priors of NACL"),
        "posthoc": ("posthoc", "Calibration after training"),
    }
    name, title = titles[group]
    if group == "posthoc":
        bases = dict.fromkeys(m.rsplit("+", 1)[0] for m in members)
        rows = [
            m
            for base in bases
            for m in (base, *(x for x in members if x.rsplit("+", 1)[0] == base))
            if m in study.methods
        ]
        rules = {b for b in list(bases)[1:] if b in study.methods}
    else:
        base = reference(numbers)
        rows, rules = [*([base] if base else []), *members], {members[0]} if base else set()
    return _table(numbers, region, rows, name=name, title=title, rules=rules)


def reference(numbers: Numbers) -> str | None:
    """The method that ablations and priors vary: NACL of the main group."""
    main = numbers.study.in_group("main")
    return next(
        (m for m in main if m == "nacl" or row_of(numbers.study.methods[m].paper) == "nacl"), None
    )


def _table(
    numbers: Numbers,
    region: str,
    methods: Sequence[str],
    *,
    name: str,
    title: str,
    rules: Iterable[str] = (),
) -> Table | None:
    study = numbers.study
    columns = [
        metric_column(metric, group=dataset.title, dataset=dataset.name)
        for dataset in study.datasets.values()
        if any((dataset.name, m) in study.present for m in methods)
        for metric in study.metrics
    ]
    shown = [m for m in methods if any((d, m) in study.present for d in study.datasets)]
    failed = [m for m in methods if m not in shown]
    if not columns or not methods:
        return None
    rows = tuple(
        Row(
            method,
            study.methods[method].title,
            tuple(_cell(numbers, column, method, region) for column in columns),
            rule=method in rules,
            note=_seeds_note(numbers, method),
        )
        for method in [*shown, *failed]
    )
    table = Table(
        name, title, tuple(columns), rows, region=region, caption=_caption(numbers, region),
    )  # fmt: skip
    return marked(_with_notes(table, numbers))


def _cell(numbers: Numbers, column: Column, method: str, region: str) -> Cell:
    study = numbers.study
    source = study.datasets[column.dataset].source
    return Cell(
        numbers.overall(column.dataset, method, column.key, region),
        published=published(study.methods[method].paper, source, column.key, region),
    )


def _seeds_note(numbers: Numbers, method: str) -> str:
    """What is said of a method whose runs did not all end."""
    runs = [run for run in numbers.study.info.runs if run.method == method]
    done = sum(run.state == "done" for run in runs)
    if not runs or done == len(runs):
        return ""
    return "all runs failed" if done == 0 else f"{done} of {len(runs)} runs"


def _caption(numbers: Numbers, region: str) -> str:
    whole = any(is_per_structure(m) for m in numbers.study.metrics)
    inside = any(not is_per_structure(m) for m in numbers.study.metrics)
    parts = ["Segmentation metrics are of the whole volume."] if whole else []
    parts += [f"Calibration is measured in region “{region}”."] if inside else []
    if numbers.seeds > 1:
        parts.append("Means over cases; mean ± standard deviation over seeds.")
    else:
        parts.append("Means over cases.")
    parts.append("Best in bold, second underlined.")
    return " ".join(parts)


def _with_notes(table: Table, numbers: Numbers) -> Table:
    notes = []
    lost = sum(cell.number.undefined for row in table.rows for cell in row.cells)
    if lost:
        notes.append(
            f"undef.: values without a definition (a distance to a mask that is empty); {lost} in "
            "all. They are left out of the means, which flatters a method that misses structures; "
            "the rankings count a missed structure as the worst, not one that nobody has."
        )
    if table.has_published:
        units = {c.unit for c in table.columns if base_metric(c.key) == "hd95"}
        mixed = " Its HD is in voxels, ours in mm: the two do not compare." if "mm" in units else ""
        notes.append(f"Published: {CITATION}.{mixed}")
    return replace(table, notes=(*table.notes, *notes))


def class_table(numbers: Numbers, dataset: Dataset, region: str) -> Table | None:
    """DSC and distance of each structure, and the calibration error of each class."""
    study = numbers.study
    methods = [m for m in study.methods if (dataset.name, m) in study.present]
    rows = numbers.rows
    here = rows[rows["dataset"] == dataset.name]
    segmentation = [m for m in study.metrics if is_per_structure(m)]
    found = list(dict.fromkeys(here.loc[here["metric"].isin(segmentation), "label"].astype(str)))
    structures = [s for s in dataset.structures if s in found] or found
    classes = list(dict.fromkeys(here.loc[here["metric"] == "class_ece", "label"].astype(str)))
    keys = [(s, m, s) for s in structures for m in segmentation]
    keys += [("class ECE", "class_ece", label) for label in classes]
    columns = []
    for group, metric, label in keys:
        column = metric_column(metric, group=_structure(dataset, group), dataset=dataset.name)
        if metric == "class_ece":
            column = Column(metric, dataset.class_name(label), "", "lower", 3, group, dataset.name)
        columns.append(column)
    if not columns or not methods:
        return None
    cells = {
        method: tuple(
            Cell(numbers.of_label(dataset.name, method, metric, label, region))
            for _, metric, label in keys
        )
        for method in methods
    }
    table = Table(
        f"classes_{dataset.name}", f"Classes of {dataset.title}", tuple(columns),
        tuple(Row(m, study.methods[m].title, cells[m]) for m in methods),
        caption=_caption(numbers, region), region=region,
    )  # fmt: skip
    return marked(_with_notes(table, numbers))


def _structure(dataset: Dataset, label: str) -> str:
    """Rows without group names call a structure by its number."""
    return dataset.class_name(label) if label.isdecimal() else label


def confidence_table(numbers: Numbers) -> Table | None:
    """Confidence minus accuracy of every method in every region, and what that is called."""
    study = numbers.study
    methods = [m for m in study.methods if any((d, m) in study.present for d in study.datasets)]
    columns = [
        Column(region, region, group=dataset.title, dataset=dataset.name)
        for dataset in study.datasets.values()
        if any((dataset.name, m) in study.present for m in methods)
        for region in study.regions
    ]
    if not columns:
        return None
    rows = tuple(
        Row(
            method,
            study.methods[method].title,
            tuple(_gap(numbers, c.dataset, method, c.key) for c in columns),
        )
        for method in methods
    )
    if all(math.isnan(c.number.mean) for row in rows for c in row.cells):
        return None
    caption = (
        "Mean confidence minus accuracy in each region: above 0 over-confident, below 0 "
        "under-confident. Region “all” decides; no colour where a gap is small or seeds disagree. "
        "Errors of opposite sign cancel here, not in ECE."
    )
    title = "Over- and under-confidence"
    return Table("confidence", title, tuple(columns), rows, caption, compact=True)


def _gap(numbers: Numbers, dataset: str, method: str, region: str) -> Cell:
    words = {gap_word(gap) for gap in numbers.gaps(dataset, method, region)}
    tones = {"over-confident": "over", "under-confident": "under"}
    tone = tones.get(words.pop(), "") if len(words) == 1 else ""
    return Cell(numbers.overall(dataset, method, "signed_gap", region), signed=True, tone=tone)


def truth_table(numbers: Numbers, dataset: Dataset) -> Table | None:
    """Calibration against the true probabilities, where a dataset has them."""
    study = numbers.study
    rows = numbers.rows
    here = set(rows.loc[rows["dataset"] == dataset.name, "metric"])
    metrics = [m for m in TRUTH if m in here]
    methods = [m for m in study.methods if (dataset.name, m) in study.present]
    if not metrics or not methods:
        return None
    truth_region = str(rows.loc[rows["metric"] == metrics[0], "region"].iloc[0])
    keys = [(m, truth_region) for m in metrics]
    keys += [("ece", region) for region in study.regions]
    columns = [
        metric_column(
            metric,
            group="against the true probabilities" if metric in TRUTH else "ECE against labels",
            dataset=dataset.name,
            title="" if metric in TRUTH else region,
        )
        for metric, region in keys
    ]
    made = [
        Row(
            m,
            study.methods[m].title,
            tuple(Cell(numbers.overall(dataset.name, m, metric, r)) for metric, r in keys),
        )
        for m in methods
    ]
    caption = (
        f"True probabilities p* are known for {dataset.title}; measured in region "
        f"“{truth_region}”. Beside them the ECE against the labels in each region."
    )
    table = Table(
        f"truth_{dataset.name}", f"Against the true probabilities: {dataset.title}",
        tuple(columns), tuple(made), caption, region=truth_region,
    )  # fmt: skip
    return marked(table)


def gap_word(gap: float) -> str:
    """What a signed gap is called."""
    return "unknown" if math.isnan(gap) else confidence_verdict(gap)


def undefined_by_metric(numbers: Numbers, region: str) -> list[tuple[str, str, str, Number]]:
    """(dataset, method, metric, number) wherever values are undefined."""
    study = numbers.study
    out = []
    for dataset in study.datasets:
        for method in study.methods:
            for metric in study.metrics:
                number = numbers.overall(dataset, method, metric, region)
                if number.undefined:
                    out.append((dataset, method, metric, number))
    return out
