"""Write the predictions of a run as files, for commands that read files."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from segcal.config import EvaluationConfig
from segcal.core.arrays import to_numpy
from segcal.core.files import write_json
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import IGNORED, write_nifti
from segcal.evaluation.finished_run import open_runs
from segcal.evaluation.predictor import make_predictor
from segcal.evaluation.run_cases import RunCases, checked_cases, predicted_cases


def export_predictions(
    run: Path | str, split: str, out: Path, *, progress: ProgressCallback = no_progress
) -> Mapping[str, str]:
    """Write probs/ and labels/ of a split of a run to `out`, as NIfTI files on the original grid.

    In a folder with the runs fold0, fold1, … each fold predicts its own validation cases; cases of
    other splits are predicted by the mean of all folds. Ignored voxels have the label 255. Returns
    the patient of each case.
    """
    runs, config = open_runs(run), EvaluationConfig()
    for folder in (out / "probs", out / "labels"):
        folder.mkdir(parents=True)
    write_json(out / "probs" / "dataset.json", runs[0].dataset_json)
    groups = [
        (members, *checked_cases(members, members[0].open_data(), split, config, warnings.warn))
        for members in ([[member] for member in runs] if split == "val" else [runs])
    ]
    total = sum(len(cases) for _, cases, _ in groups)
    patients: dict[str, str] = {}
    for members, cases, _ in groups:
        inputs = RunCases(members[0], members[0].open_data(), cases, original=True)
        found = predicted_cases(make_predictor(members, config, "auto"), inputs)
        for case, one in zip(cases, found, strict=True):
            target = np.where(one.target < 0, IGNORED, one.target).astype(np.uint8)
            for folder_name, array in (("probs", to_numpy(one.probs)), ("labels", target)):
                write_nifti(out / folder_name / f"{case.name}.nii", array, case.grid)
            patients[case.name] = case.patient
            progress("predicting", len(patients), total)
    return patients
