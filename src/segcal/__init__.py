"""segcal: segmentation networks whose confidence can be trusted.

The names below and the sub-packages load on first use, so `import segcal` is fast:

    segcal.NACLLoss(), segcal.make_loss("nacl")      losses
    segcal.CalibrationBins(...), segcal.evaluate_case(...)   metrics
    segcal.TemperatureScaling()                      post-hoc calibration
    segcal.train(...), segcal.load_model(...)        networks
"""

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports

if TYPE_CHECKING:  # the types of the names that load on first use
    from segcal import assurance as assurance
    from segcal import benchmark as benchmark
    from segcal import config as config
    from segcal import core as core
    from segcal import data as data
    from segcal import evaluation as evaluation
    from segcal import integrations as integrations
    from segcal import losses as losses
    from segcal import metrics as metrics
    from segcal import models as models
    from segcal import posthoc as posthoc
    from segcal import predictions as predictions
    from segcal import registry as registry
    from segcal import report as report
    from segcal import stats as stats
    from segcal import study as study
    from segcal import training as training
    from segcal.benchmark import run_benchmark as run_benchmark
    from segcal.data import open_dataset as open_dataset
    from segcal.evaluation import audit_predictions as audit_predictions
    from segcal.evaluation import evaluate_run as evaluate_run
    from segcal.evaluation import predict_volumes as predict_volumes
    from segcal.losses import DiceLoss as DiceLoss
    from segcal.losses import NACLLoss as NACLLoss
    from segcal.losses import SVLSLoss as SVLSLoss
    from segcal.losses import WeightedSum as WeightedSum
    from segcal.losses import make_loss as make_loss
    from segcal.metrics import CalibrationBins as CalibrationBins
    from segcal.metrics import ProperScores as ProperScores
    from segcal.metrics import evaluate_case as evaluate_case
    from segcal.models import load_model as load_model
    from segcal.models import make_model as make_model
    from segcal.posthoc import TemperatureScaling as TemperatureScaling
    from segcal.posthoc import load_calibrator as load_calibrator
    from segcal.posthoc import make_calibrator as make_calibrator
    from segcal.report import write_report as write_report
    from segcal.training import train as train

__version__ = "0.1.0.dev0"

_PACKAGES = (
    "assurance", "benchmark", "config", "core", "data", "evaluation", "integrations", "losses",
    "metrics", "models", "posthoc", "predictions", "registry", "report", "stats", "study",
    "training",
)  # fmt: skip
_NAMES = {
    "losses": ("DiceLoss", "NACLLoss", "SVLSLoss", "WeightedSum", "make_loss"),
    "metrics": ("CalibrationBins", "ProperScores", "evaluate_case"),
    "posthoc": ("TemperatureScaling", "load_calibrator", "make_calibrator"),
    "models": ("load_model", "make_model"),
    "data": ("open_dataset",),
    "training": ("train",),
    "evaluation": ("audit_predictions", "evaluate_run", "predict_volumes"),
    "benchmark": ("run_benchmark",),
    "report": ("write_report",),
}
_EXPORTS = {
    **dict.fromkeys(_PACKAGES, ""),
    **{name: f"segcal.{package}" for package, names in _NAMES.items() for name in names},
}

__all__ = ["__version__", *_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, ["__version__"])
