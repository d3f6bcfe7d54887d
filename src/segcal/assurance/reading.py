"""Scans with labels from files, and their patients."""

from __future__ import annotations

from segcal.assurance.summary import CaseSummary, summarize
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


def units_of(pairs: Pairs, patient: str | None) -> list[str]:
    """The patient of each scan; without a pattern, each scan is one patient."""
    return pairs.names if patient is None else list(patients_of(pairs.names, patient).values())
