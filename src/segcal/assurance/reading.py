"""Scans from files, one job each, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.summary import CaseSummary, summarize
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.jobs import run_jobs
from segcal.core.progress import ProgressCallback
from segcal.posthoc import Calibrator
from segcal.predictions import Pair, Pairs, name_file_in_errors
from segcal.stats import patients_of

R = TypeVar("R")


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


def run_all(
    jobs: Mapping[str, Callable[[], R]], processes: int, what: str, progress: ProgressCallback
) -> list[R]:
    """The results in the order of `jobs`, whatever the number of processes."""
    found: dict[str, R] = {}
    with closing(run_jobs(jobs, processes)) as outcomes:
        for name, outcome in outcomes:
            if isinstance(outcome, PathError):
                raise outcome
            found[name] = outcome
            progress(what, len(found), len(jobs))
    return [found[name] for name in jobs]
