"""What remains of a method's differences to the others once seeds count as well as cases."""

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from segcal.report.numbers import Number, Numbers
from segcal.report.phrases import join
from segcal.report.ranks import ALPHA, FEW_CASES, Ranks
from segcal.report.reference import why_this
from segcal.report.table import Cell, Column, Row, Table, metric_column
from segcal.stats import compare_with_random_effects, distinct_hypotheses
from segcal.study.schema import Dataset

if TYPE_CHECKING:
    import pandas as pd

# From here on simulated false alarms at 0.2 % stay below 1 %.
_ENOUGH_SEEDS = 5
# Studies made before study.json named patients: ACDC has two frames of each.
_ACDC_PATIENT = re.compile(r"(patient\d+)_frame\d+")


@dataclass(frozen=True)
class Counted:
    """The comparisons of `segcal.metrics.compare_crossed` of a reference with every other method.

    `by_patient` are the datasets in which a patient has several cases, and counts once. False where
    no pair has two seeds in common and enough cases: nothing can be said then.
    """

    rows: "pd.DataFrame"
    reference: str
    region: str
    by_patient: frozenset[str]

    @property
    def judged(self) -> "pd.DataFrame":
        """Those that count seeds, over enough cases."""
        return self.rows[self.rows["p_holm"].notna() & (self.rows["cases"] >= FEW_CASES)]

    @property
    def family(self) -> int:
        """How many comparisons Holm's correction is over."""
        return len(distinct_hypotheses(self.rows[self.rows["p_holm"].notna()]))

    @property
    def twins(self) -> set[Any]:
        """Rows that compare what another does: masks that a calibrator left as they were."""
        known = self.rows[self.rows["mean_difference"].notna()]
        return set(known.index) - set(distinct_hypotheses(known).index)

    @property
    def datasets(self) -> list[str]:
        """Those of which something can be said."""
        return [str(name) for name in dict.fromkeys(self.judged["dataset"])]

    def __bool__(self) -> bool:
        return not self.judged.empty


def count_seeds(numbers: Numbers, ranks: Ranks, region: str) -> Counted:
    """Every ranked method against the reference, on the datasets and metrics of the ranking.

    Calibrated ones too: whether training for calibration is worth it is asked of them. Calibration
    is that in `region`; Holm's correction is over the comparisons of one region.
    """
    rows, scores, study = numbers.rows, ranks.scores, numbers.study
    after = [
        m for m in study.in_group("posthoc") if all((d, m) in study.present for d in ranks.datasets)
    ]
    rows = rows[
        rows["method"].isin([*scores.methods, *after])
        & rows["dataset"].isin(ranks.datasets)
        & rows["metric"].isin(scores.metrics)
    ]
    patients = {name: _patients(dataset, rows) for name, dataset in numbers.study.datasets.items()}
    found = compare_with_random_effects(
        rows, reference=ranks.reference, metrics=scores.metrics, region=region, patients=patients,
    )  # fmt: skip
    shared = frozenset(name for name, of in patients.items() if len(set(of.values())) < len(of))
    return Counted(found, ranks.reference, region, shared)


def _patients(dataset: Dataset, rows: "pd.DataFrame") -> dict[str, str]:
    """Case → patient."""
    if dataset.patients or dataset.source != "acdc":
        return dataset.patients
    cases = map(str, rows.loc[rows["dataset"] == dataset.name, "case"].unique())
    found = {case: _ACDC_PATIENT.fullmatch(case) for case in cases}
    return {case: match[1] for case, match in found.items() if match}


def patients_note(numbers: Numbers, counted: Counted) -> str:
    """A word of warning where tests over cases take scans of one patient for independent."""
    names = [numbers.study.datasets[name].title for name in sorted(counted.by_patient)]
    if not names:
        return ""
    out = (
        f"{join(names)}: cases of one patient count as if they were independent here, which makes "
        "these p-values too small"
    )
    below = "; where seeds are counted, below, a patient counts once" if counted else ""
    return f"{out}{below}."


def remains(row: Any) -> bool:
    """Whether a difference is significant with seeds counted, after correction."""
    return bool(row["p_holm"] < ALPHA and row["cases"] >= FEW_CASES)


def only_cases(row: Any) -> bool:
    """Whether a difference is significant over cases alone, and not with seeds counted."""
    enough = row["cases"] >= FEW_CASES and row["seeds"] > 1
    return bool(enough and row["p_cases_holm"] < ALPHA and not remains(row))


def seed_words(numbers: Numbers, counted: Counted) -> str:
    """How many differences remain, in one sentence for the findings."""
    rows, reference = distinct_hypotheses(counted.judged), counted.reference
    sure = rows[[remains(row) for _, row in rows.iterrows()]]
    won = int((sure["better"] == reference).sum())
    alone = int((rows["p_cases_holm"] < ALPHA).sum())
    lost = sum(only_cases(row) for _, row in rows.iterrows())
    title = numbers.study.methods[reference].title
    out = (
        f"Of the {len(rows)} differences between {title} and the other methods (calibration in "
        f"region “{counted.region}”), {len(sure)} remain{'s' * (len(sure) == 1)} when seeds count "
        f"as well as cases ({won} in its favour, {len(sure) - won} against it; {_seeds(rows)}, "
        f"Holm over all {counted.family}, α = {ALPHA:g}). "
    )
    if not alone:
        return f"{out}A test over the same cases alone calls none of them significant either."
    fate = f"{lost} of those {'does' if lost == 1 else 'do'} not remain" if lost else "all remain"
    return f"{out}A test over the same cases alone calls {alone} significant; {fate}."


def _seeds(rows: "pd.DataFrame") -> str:
    low, high = int(rows["seeds"].min()), int(rows["seeds"].max())
    return f"{low} seeds" if low == high else f"{low} to {high} seeds"


def seeds_note(numbers: Numbers, counted: Counted) -> str:
    """What is said above the tables, or why there are none."""
    title = numbers.study.methods[counted.reference].title
    if not counted and (counted.rows["seeds"] > 1).any():
        return f"This needs at least {FEW_CASES} cases that all seeds of two methods have."
    if not counted:
        return (
            "This needs at least two seeds that methods have in common: with one, nobody knows "
            "whether a difference between methods would outlast the next training."
        )
    out = (
        "A test over cases speaks of the networks that were trained; a new seed trains another. "
        "Here seeds and cases are both drawn at random (crossed random effects, t interval with "
        f"Satterthwaite's degrees of freedom): {title} minus each method, seed by seed and case by "
        "case. Runs of the same seed are a pair: they began with the same weights and saw the "
        "same order of batches."
    )
    fewest = int(counted.judged["seeds"].min())
    if 2 < fewest < _ENOUGH_SEEDS:
        out += (
            f" With {fewest} seeds, and where seeds are most of the spread, the smallest p-values "
            "are too small (up to 2 false alarms in 100 where a corrected test promises 2 in "
            "1,000): take a lone mark with care, or train five seeds."
        )
    if fewest == 2:
        out += (
            " Two seeds say little of their spread: where seeds are most of it, such intervals are "
            "too narrow (one false alarm in nine instead of one in twenty), and small p-values far "
            "too small (6 false alarms in 100 where a corrected test promises 2 in 1,000); take "
            "three or more."
        )
    return f"{out} {why_this(numbers.study, counted.reference)}"


def seeds_table(numbers: Numbers, counted: Counted, dataset: str) -> Table:
    """Difference, interval and the share of seeds, one row per method."""
    rows = counted.rows[counted.rows["dataset"] == dataset]
    columns = []
    for metric in dict.fromkeys(rows["metric"]):
        name = str(metric)
        first = Column(
            name, "difference", digits=digits_of(name), group=metric_column(name).heading,
            dataset=dataset,
        )  # fmt: skip
        share = replace(first, key=f"{name}_seed_share", title="seeds", unit="%", digits=0)
        columns += [first, share]
    others = set(rows["other"])
    made = []
    for method in (m for m in numbers.study.methods if m in others):
        mine = rows[rows["other"] == method]
        cells = [
            cell
            for at, row in mine.iterrows()
            for cell in ((Cell(), Cell()) if at in counted.twins else _cells(row))
        ]
        note = "one seed: over cases alone" if (mine["seeds"] == 1).any() else ""
        made.append(Row(method, numbers.study.methods[method].title, tuple(cells), note=note))
    title = numbers.study.methods[counted.reference].title
    subjects = f"{int(rows['cases'].max())} cases"
    if dataset in counted.by_patient:
        subjects = f"{int(rows['cases'].max())} patients (cases of a patient averaged)"
    caption = (
        f"{title} minus the method with its 95 % interval: {_seeds(counted.judged)}, {subjects}; "
        f"calibration in region “{counted.region}”. Bold remains after Holm's correction over all "
        "differences of all datasets in this region; † is significant over cases alone, and no "
        "more when seeds count. “Seeds”: their part of the squared standard error; where it is "
        "large, more cases do not help."
    )
    if counted.twins:
        caption += " “–”: a calibrator left the masks as they were."
    return Table(
        f"seeds_{dataset}", f"Once seeds count: {numbers.study.datasets[dataset].title}",
        tuple(columns), tuple(made), caption, _notes(numbers, rows), counted.region,
    )  # fmt: skip


def digits_of(metric: str) -> int:
    """Differences are smaller than values: one digit more, but for distances."""
    digits = metric_column(metric).digits
    return digits if digits < 3 else digits + 1


def _cells(row: Any) -> tuple[Cell, Cell]:
    number = Number(float(row["mean_difference"]), seeds=int(row["seeds"]), cases=int(row["cases"]))
    digits = digits_of(str(row["metric"]))
    after = ""
    if not math.isnan(row["low"]):
        low, high = (f"{row[end]:+.{digits}f}".replace("-", "−") for end in ("low", "high"))
        after = f"[{low}, {high}]" + (" †" if only_cases(row) else "")
    mark = "sure" if remains(row) else ""
    share = Number(100 * float(row["seed_share"]))
    return Cell(number, signed=True, mark=mark, after=after), Cell(share)


def _notes(numbers: Numbers, rows: "pd.DataFrame") -> tuple[str, ...]:
    """Which comparisons lack cases."""
    lost = [
        f"{metric_column(str(row['metric'])).title} against "
        f"{numbers.study.methods[str(row['other'])].title}: {row['left_out']}"
        for _, row in rows.iterrows()
        if row["left_out"] and row["cases"]
    ]
    if not lost:
        return ()
    return (
        "Cases left out, because a method has no value in some seed (a structure that it missed, "
        f"or a case that it was not tested on), which flatters it: {join(lost)}.",
    )
