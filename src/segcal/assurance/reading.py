"""Scans with labels from files, and their patients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.summary import CaseSummary, summarize
from segcal.core.files import file_sha256
from segcal.posthoc import Calibrator
from segcal.predictions import Pair, Pairs, name_file_in_errors
from segcal.stats import patients_of


def read_labeled(pair: Pair, calibrator: Calibrator | None) -> CaseSummary:
    """Read and count a scan with labels."""
    case = pair.load()
    with name_file_in_errors(pair.softmax.path):
        return summarize(
            case.values, case.target, case.spacing_mm,
            calibrator=calibrator, image=case.image, name=pair.name,
        )  # fmt: skip


def units_of(pairs: Pairs, patient: str | Mapping[str, str] | None) -> NDArray[np.str_]:
    """The patient of each scan; without a pattern or a table, each scan is one patient."""
    found = patients_of(pairs.names, patient) if isinstance(patient, str) else patient or {}
    return np.array([found.get(name, name) for name in pairs.names])


def identify(pair: Pair) -> tuple[str, str]:
    """What tells that two scans are one: the probabilities, or the name and the labels."""
    labels = sorted(pair.label.iterdir()) if pair.label.is_dir() else [pair.label]
    of_probs, of_labels = (
        "-".join(map(file_sha256, paths)) for paths in (pair.softmax.paths, labels)
    )
    return of_probs, f"{pair.name}-{of_labels}"
