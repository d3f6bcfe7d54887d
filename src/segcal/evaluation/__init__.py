"""Evaluate runs and predictions::

    evaluate_run(run)           the files of an evaluation of a run, also on an external set or
                                calibrated; `segcal evaluate`
    write_evaluation(cases, …)  the same files for any predictions
    predict_volumes(runs, …)    NIfTI maps on the original grid; `segcal predict`
    predict_case(network, …)    one volume, averaged over networks and mirror images
    fit_run, fit_pairs          `segcal calibrate`, on a run or on files
    apply_folder                `segcal apply`
    audit_predictions           `segcal audit`

torch is imported only when a network is used.
"""

from segcal.core.checks import require_app

require_app(__name__)

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports
from segcal.evaluation.audit import audit_predictions, make_networks
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.fail_rules import check_rules, parse_rule
from segcal.evaluation.posthoc_apply import Applied, apply_folder, check_num_classes
from segcal.evaluation.posthoc_choice import AUTO, AUTO_TITLE, check_method
from segcal.evaluation.posthoc_fit import Fitted, fit_pairs
from segcal.evaluation.predict_manifest import calibration_of, seen_cases, write_applied
from segcal.study import Evaluation, read_evaluation

if TYPE_CHECKING:
    from segcal.evaluation.finished_run import open_run
    from segcal.evaluation.posthoc_run import (
        calibrator_path,
        fit_and_save,
        fit_run,
        saved_calibrator,
    )
    from segcal.evaluation.predict import predict_case
    from segcal.evaluation.predict_nifti import OUTPUTS, predict_volumes
    from segcal.evaluation.run_evaluation import SPLITS, differences, evaluate_run
    from segcal.evaluation.run_export import export_predictions

__all__ = [
    "AUTO", "AUTO_TITLE", "OUTPUTS", "SPLITS", "Applied", "Evaluation", "Fitted",
    "PredictedCase", "apply_folder", "audit_predictions", "calibration_of", "calibrator_path",
    "check_method", "check_num_classes", "check_rules", "differences", "evaluate_run",
    "export_predictions", "fit_and_save", "fit_pairs", "fit_run", "make_networks", "open_run",
    "parse_rule", "predict_case", "predict_volumes", "read_evaluation", "saved_calibrator",
    "seen_cases", "write_applied", "write_evaluation",
]  # fmt: skip

_LAZY = {
    "run_evaluation": ("SPLITS", "differences", "evaluate_run"),
    "finished_run": ("open_run",),
    "posthoc_run": ("calibrator_path", "fit_and_save", "fit_run", "saved_calibrator"),
    "predict": ("predict_case",),
    "predict_nifti": ("OUTPUTS", "predict_volumes"),
    "run_export": ("export_predictions",),
}
__getattr__, __dir__ = lazy_exports(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _LAZY.items() for name in names},
    __all__,
)
