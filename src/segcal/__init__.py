"""segcal: segmentation networks whose confidence can be trusted.

The names below and the sub-packages load on first use, so `import segcal` is fast:

    segcal.NACLLoss(), segcal.make_loss("nacl")      losses
    segcal.CalibrationBins(...), segcal.evaluate_case(...)   metrics
    segcal.TemperatureScaling()                      post-hoc calibration
    segcal.train(...), segcal.load_model(...)        networks
"""

from segcal.core.lazy import lazy_exports

__version__ = "0.1.0.dev0"

_PACKAGES = (
    "benchmark", "config", "core", "data", "evaluation", "integrations", "losses", "metrics",
    "models", "posthoc", "predictions", "registry", "report", "stats", "study", "training",
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
