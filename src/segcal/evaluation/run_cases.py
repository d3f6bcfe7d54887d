"""The cases of a split as the networks of runs need them, and the predictions of these networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from segcal.config import EvaluationConfig
from segcal.core.files import scratch_folder
from segcal.core.heads import head_masks
from segcal.data import (
    IGNORED,
    GridRecipe,
    OriginalScans,
    PreparedCase,
    PreparedDataset,
    place,
    turned_grid,
    verify_cases,
    write_case,
)
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.finished_run import FinishedRun
from segcal.evaluation.predict import restore_probs
from segcal.evaluation.predictor import Predictor
from segcal.evaluation.scan_checks import Space
from segcal.metrics import predicted_labels


def cases_of(
    runs: Sequence[FinishedRun], dataset: PreparedDataset, split: str
) -> list[PreparedCase]:
    """The cases that are in the split of every run; folds count for their own data only."""
    own = dataset.fingerprint == runs[0].info.data_fingerprint
    folds = dict.fromkeys(run.config.data.fold if own else None for run in runs)
    first, *others = [dataset.part(split, fold) for fold in folds]
    return [case for case in first if all(case in part for part in others)]


def checked_cases(
    runs: Sequence[FinishedRun],
    dataset: PreparedDataset,
    split: str,
    config: EvaluationConfig,
    say: Callable[[str], None],
) -> tuple[list[PreparedCase], tuple[str, ...]]:
    """The cases of a split, unchanged since they were prepared; and those that a run has seen.

    `say` is called with one line about the latter. Cases of the runs' own data must not have been
    in another split when a run was trained, and every run must have its checkpoint.
    """
    cases = cases_of(runs, dataset, split)
    external = dataset.fingerprint != runs[0].info.data_fingerprint
    for run in runs:
        run.checkpoint(config.checkpoint)
        if not external:
            run.open_data(dataset.root)
            run.check_unseen(cases, split)
    verify_cases(cases)
    scans = {case.name: case.properties.voxels_sha256 for case in cases}
    found = [name for run in runs for name in run.seen(scans, "test" if external else split)]
    seen = tuple(dict.fromkeys(found))
    if seen:
        say(runs[0].describe_seen(seen))
    return cases, seen


@dataclass(frozen=True)
class RunCases:
    """Cases as the network of a run needs them, each with itself on the grid to measure on.

    Cases of an external set that were stored on another grid, in another orientation or with
    another normalization are read again from their source files, and so are the labels on the
    original grid. Such cases exist until the next one is drawn.
    """

    run: FinishedRun
    dataset: PreparedDataset
    cases: Sequence[PreparedCase]
    original: bool = False

    def __iter__(self) -> Iterator[tuple[PreparedCase, PreparedCase]]:
        own = self.dataset.fingerprint == self.run.info.data_fingerprint
        info, scans = self.run.data_info, OriginalScans(self.dataset)
        orientation = None if own else Space([self.run]).orientation
        same_intensity = self.dataset.info.intensity == info.intensity
        for case in self.cases:
            grid = case.grid if own else turned_grid(case.grid, info.grid, orientation)
            fits = grid == case.grid and same_intensity
            native = turned_grid(grid, GridRecipe(), None)
            if fits and (not self.original or grid == native):
                yield case, case
                continue
            scan = scans.read(case.name, info.intensity)
            with scratch_folder() as folder:
                stored = case
                if not fits:
                    placed = place(scan, info.grid, orientation)
                    stored = write_case(placed, folder / "stored", info.dtype)
                measured = stored
                if self.original:
                    placed = place(scan, GridRecipe(), orientation)
                    measured = write_case(placed, folder / "original", info.dtype)
                yield stored, measured


def predicted_cases(predict: Predictor, cases: RunCases) -> Iterator[PredictedCase]:
    """The predictions of one case after another, with everything they are measured against."""
    heads = cases.run.heads
    label = head_masks if heads else predicted_labels
    _ = predict.networks  # an error of theirs is not about a case
    for case, measured in cases:
        image = case.image()
        try:
            found = predict(image, case.spacing_mm)
        except ValueError as error:
            raise ValueError(f"{cases.run.folder}: case {case.name}: {error}") from error
        # Metrics count in float64, which MPS does not have.
        device = torch.device("cpu") if found.probs.device.type == "mps" else found.probs.device
        probs: Any = found.probs.to(device)
        logits = None if found.logits is None else found.logits.to(device)
        if measured is not case:
            probs, logits = restore_probs(case.grid, probs, bool(heads)), None
        labels = [
            label(p if measured is case else restore_probs(case.grid, p, bool(heads)))
            for p in (member.probs for member in found.members)
        ]
        readers = measured.readers
        raters = dict(zip(readers, measured.raters(), strict=True)) if readers else {}
        if heads:
            raters = {k: np.where(r == IGNORED, np.int16(-100), r) for k, r in raters.items()}
        yield PredictedCase(
            name=case.name,
            probs=probs,
            target=measured.target(),
            spacing_mm=measured.spacing_mm,
            image=image if measured is case else measured.image(),
            logits=logits,
            true_probs=measured.truth(),
            raters=raters or None,
            annotated=measured.properties.annotated,
            members=np.stack(labels) if labels else None,
            heads=heads,
        )
