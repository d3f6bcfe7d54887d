"""Evaluate runs and predictions.

    evaluate_run(run)           the files of an evaluation of a run; `segcal evaluate`
    write_evaluation(cases, …)  the same files for any predictions
    evaluate_calibrated(run, …) the same for a run that is calibrated after its training
    predict_volumes(runs, …)    NIfTI maps on the original grid; `segcal predict`
    predict_case(network, …)    one volume, averaged over networks and mirror images
    fit_pairs, apply_folder     `segcal calibrate` and `segcal apply`
    audit_predictions           `segcal audit`

torch is imported only when a network is used.
"""

from segcal.core.checks import require_app

require_app(__name__)

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports
from segcal.evaluation.audit import Audited, audit_predictions, make_networks
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.fail_rules import check_rules, parse_rule
from segcal.evaluation.posthoc_apply import Applied, apply_folder, check_num_classes
from segcal.evaluation.posthoc_fit import Fitted, fit_pairs
from segcal.evaluation.posthoc_verdict import Change, Verdict
from segcal.study import Evaluation, read_evaluation

if TYPE_CHECKING:
    from segcal.evaluation.finished_run import (
        SPLITS,
        FinishedRun,
        differences,
        evaluate_run,
        open_run,
    )
    from segcal.evaluation.posthoc_run import evaluate_calibrated
    from segcal.evaluation.predict import Prediction, predict_case
    from segcal.evaluation.predict_nifti import OUTPUTS, PredictReport, predict_volumes

__all__ = [
    "OUTPUTS",
    "SPLITS",
    "Applied",
    "Audited",
    "Change",
    "Evaluation",
    "FinishedRun",
    "Fitted",
    "PredictReport",
    "PredictedCase",
    "Prediction",
    "Verdict",
    "apply_folder",
    "audit_predictions",
    "check_num_classes",
    "check_rules",
    "differences",
    "evaluate_calibrated",
    "evaluate_run",
    "fit_pairs",
    "make_networks",
    "open_run",
    "parse_rule",
    "predict_case",
    "predict_volumes",
    "read_evaluation",
    "write_evaluation",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "OUTPUTS": "segcal.evaluation.predict_nifti",
        "PredictReport": "segcal.evaluation.predict_nifti",
        "predict_volumes": "segcal.evaluation.predict_nifti",
        "SPLITS": "segcal.evaluation.finished_run",
        "FinishedRun": "segcal.evaluation.finished_run",
        "differences": "segcal.evaluation.finished_run",
        "evaluate_run": "segcal.evaluation.finished_run",
        "open_run": "segcal.evaluation.finished_run",
        "evaluate_calibrated": "segcal.evaluation.posthoc_run",
        "Prediction": "segcal.evaluation.predict",
        "predict_case": "segcal.evaluation.predict",
    },
    __all__,
)
