"""Write the predictions of a run as files, for commands that read files."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from segcal.config import EvaluationConfig
from segcal.core.arrays import to_numpy
from segcal.core.errors import PathError
from segcal.core.files import write_json
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import IGNORED, write_nifti
from segcal.evaluation.finished_run import open_run
from segcal.evaluation.predictor import make_predictor
from segcal.evaluation.run_cases import RunCases, checked_cases, predicted_cases


def export_predictions(
    run: Path | str,
    split: str,
    out: Path,
    *,
    device: str = "auto",
    progress: ProgressCallback = no_progress,
) -> Mapping[str, str]:
    """Write probs/ and labels/ of a split of a run to `out`, as NIfTI files on the original grid.

    Ignored voxels have the label 255. Returns the patient of each case.
    """
    opened = open_run(run)
    if opened.heads:
        problem = "has overlapping regions (sigmoid outputs)"
        raise PathError(opened.folder, problem, "use a run with exclusive classes")
    dataset, config = opened.open_data(), EvaluationConfig()
    cases, _ = checked_cases([opened], dataset, split, config, warnings.warn)
    inputs = RunCases(opened, dataset, cases, original=True)
    found = predicted_cases(make_predictor([opened], config, device), inputs)
    for folder in (out / "probs", out / "labels"):
        folder.mkdir(parents=True)
    labels = {name: label for label, name in opened.data_info.classes.items()}
    write_json(out / "probs" / "dataset.json", {"labels": labels})
    for done, (case, one) in enumerate(zip(cases, found, strict=True), start=1):
        target = np.where(one.target < 0, IGNORED, one.target).astype(np.uint8)
        for folder_name, array in (("probs", to_numpy(one.probs)), ("labels", target)):
            write_nifti(out / folder_name / f"{case.name}.nii", array, case.grid)
        progress("predicting", done, len(cases))
    return {case.name: case.patient for case in cases}
