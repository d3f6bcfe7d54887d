"""Patients with several cases: who they are, and one value for each of them.

Scans of one patient resemble each other. A test or an interval that takes them for independent is
too sure.
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from segcal.stats.ranking import CaseScores, Floats


def patients_of(cases: Iterable[str], pattern: str) -> dict[str, str]:
    r"""Case → patient: what a regular expression finds in the name, or the first group of it.

    Example:
        >>> patients_of(["patient001_frame01", "patient001_frame12"], r"patient\d+")
        {'patient001_frame01': 'patient001', 'patient001_frame12': 'patient001'}
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"Expected argument `patient` to be a regular expression, but got {pattern!r}: {error}."
        ) from error
    out = {}
    for case in cases:
        found = wanted.search(case)
        if found is None:
            raise ValueError(
                f"Expected argument `patient` to match every case, but {pattern!r} is not in "
                f"{case!r}."
            )
        patient = found[1] if found.groups() else found[0]
        if not patient:
            raise ValueError(
                f"Expected argument `patient` to match a name, but {pattern!r} finds no patient in "
                f"{case!r}."
            )
        out[case] = patient
    return out


def by_patient(scores: CaseScores, patients: Mapping[str, Mapping[str, str]]) -> CaseScores:
    """The mean over the cases of each patient, in the place of a case.

    Args:
        scores: what `collect` made of the long table.
        patients: dataset → case → patient; what is not named is a patient of its own.
    """
    cases, values, costs = {}, {}, {}
    for dataset, names in scores.cases.items():
        of = [patients.get(dataset, {}).get(name, name) for name in names]
        cases[dataset] = list(dict.fromkeys(of))
        members = [np.array([p == patient for p in of]) for patient in cases[dataset]]
        values[dataset] = _means(scores.values[dataset], members)
        costs[dataset] = _means(scores.costs[dataset], members)
    return replace(scores, cases=cases, values=values, costs=costs)


def _means(each: Floats, members: list[np.ndarray]) -> Floats:
    """NaN only where no method has a value of any case."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return np.stack([np.nanmean(each[chosen], axis=0) for chosen in members])
