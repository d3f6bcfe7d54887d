"""Patients with several cases: one value per patient.

Scans of one patient are similar. A test or an interval that treats them as independent is too
confident.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from segcal.stats.ranking import CaseScores, Floats


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
