"""Evaluation: what a network says of whole cases, and how far it can be trusted.

    evaluate_run(run)           the four files of a run; `segcal evaluate` is this
    write_evaluation(cases, …)  the same four files of anybody's predictions
    evaluate_calibrated(run, …) the same of a run that is calibrated after its training
    predict_volumes(runs, …)    NIfTI files on the original grid; `segcal predict` is this
    predict_case(network, …)    one volume, averaged over networks and mirror images
    find_pairs(folder, labels)  anybody's softmax beside its labels, checked
    fit_pairs, apply_folder     `segcal calibrate` and `segcal apply`
    audit_predictions           `segcal audit`

torch is imported only when a network is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from segcal.evaluation.audit import audit_predictions
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluation_files import Evaluation, read_evaluation, write_evaluation
from segcal.evaluation.posthoc_apply import apply_folder
from segcal.evaluation.posthoc_fit import AFTER_TRAINING, fit_pairs
from segcal.predictions.pairing import find_pairs

if TYPE_CHECKING:
    from segcal.evaluation.finished_run import FinishedRun, evaluate_run, open_run
    from segcal.evaluation.posthoc_run import evaluate_calibrated
    from segcal.evaluation.predict import Prediction, predict_case
    from segcal.evaluation.predict_nifti import OUTPUTS, PredictReport, predict_volumes

_NEED_TORCH = {
    "OUTPUTS": "predict_nifti",
    "FinishedRun": "finished_run",
    "PredictReport": "predict_nifti",
    "Prediction": "predict",
    "evaluate_calibrated": "posthoc_run",
    "evaluate_run": "finished_run",
    "open_run": "finished_run",
    "predict_case": "predict",
    "predict_volumes": "predict_nifti",
}

__all__ = [
    "AFTER_TRAINING",
    "OUTPUTS",
    "Evaluation",
    "FinishedRun",
    "PredictReport",
    "PredictedCase",
    "Prediction",
    "apply_folder",
    "audit_predictions",
    "evaluate_calibrated",
    "evaluate_run",
    "find_pairs",
    "fit_pairs",
    "open_run",
    "predict_case",
    "predict_volumes",
    "read_evaluation",
    "write_evaluation",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"segcal.evaluation.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'segcal.evaluation' has no attribute {name!r}")
