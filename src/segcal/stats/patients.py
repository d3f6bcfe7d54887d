"""Patients with several cases: one value per patient.

Scans of one patient are similar. A test or an interval that treats them as independent is too
confident.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from segcal.core.checks import check_int
from segcal.core.patients import patients_of
from segcal.stats.ranking import CaseScores, Floats


def make_folds(
    names: Sequence[str], folds: int, patient: str | Mapping[str, str] | None = None, seed: int = 0
) -> list[list[int]]:
    """Positions of the cases of each fold; cases of one patient stay together.

    Example:
        >>> [len(f) for f in make_folds(["p1_a", "p1_b", "p2_a", "p3_a"], 3, r"(p\\d)")]
        [2, 1, 1]
    """
    check_int("folds", folds, low=2)
    of = dict(zip(names, names, strict=True)) if patient is None else patients_of(names, patient)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        groups[of[name]].append(i)
    if len(groups) < 2:
        raise ValueError(
            "cross-validation needs two cases of different patients or more, but there is "
            f"{len(groups)}; give more cases, or --folds 0 to fit without cross-validation"
        )
    order = np.random.default_rng(seed).permutation(len(groups))
    members = [list(groups.values())[i] for i in order]
    members.sort(key=len, reverse=True)  # stable: groups of equal size stay shuffled
    out: list[list[int]] = [[] for _ in range(min(folds, len(groups)))]
    for group in members:
        min(out, key=len).extend(group)
    return out


def by_patient(scores: CaseScores, patients: Mapping[str, Mapping[str, str]]) -> CaseScores:
    """Scores with one value per patient, the mean over the cases of the patient.

    Args:
        scores: the result of `collect`.
        patients: dataset → case → patient; a case without an entry is a patient of its own.
    """
    cases, values, costs = {}, {}, {}
    for dataset, names in scores.cases.items():
        patient_of = [patients.get(dataset, {}).get(name, name) for name in names]
        cases[dataset] = list(dict.fromkeys(patient_of))
        members = [np.array([p == patient for p in patient_of]) for patient in cases[dataset]]
        values[dataset] = _means(scores.values[dataset], members)
        costs[dataset] = _means(scores.costs[dataset], members)
    return replace(scores, cases=cases, values=values, costs=costs)


def _means(each: Floats, members: list[np.ndarray]) -> Floats:
    """Means over the cases of each patient; NaN only if no method has a value of any case."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return np.stack([np.nanmean(each[chosen], axis=0) for chosen in members])
