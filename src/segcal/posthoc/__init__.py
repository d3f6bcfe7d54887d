"""Post-hoc calibration: repair the confidence of a trained network on held-out cases.

TemperatureScaling       one number; labels stay
VectorScaling            a scale and an offset per class
DirichletScaling         a matrix on log-probabilities, ODIR-regularised
MatrixScaling            the same on raw logits
LocalTemperature         a small network gives each voxel its temperature; labels stay
load_calibrator          any of them from its file

torch is imported only for local temperature.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from segcal.core.checks import check_choice
from segcal.posthoc._blocks import HeldOut
from segcal.posthoc.calibrator import Calibrator, FitReport, to_probs
from segcal.posthoc.dirichlet import DirichletScaling, MatrixScaling
from segcal.posthoc.files import load_calibrator
from segcal.posthoc.sample import Sample
from segcal.posthoc.temperature import TemperatureScaling
from segcal.posthoc.vector import VectorScaling

if TYPE_CHECKING:
    from segcal.posthoc.local import LocalTemperature

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "DirichletScaling",
    "FitReport",
    "HeldOut",
    "LocalTemperature",
    "MatrixScaling",
    "Sample",
    "TemperatureScaling",
    "VectorScaling",
    "load_calibrator",
    "make_calibrator",
    "to_probs",
]


def _local(**options: Any) -> Calibrator:
    """Local temperature; a function, so that torch is imported only for it."""
    from segcal.posthoc.local import LocalTemperature

    return LocalTemperature(**options)


CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    "temperature": TemperatureScaling,
    "vector": VectorScaling,
    "dirichlet": DirichletScaling,
    "matrix": MatrixScaling,
    "local": _local,
}


def make_calibrator(method: str, **options: Any) -> Calibrator:
    """An unfitted calibrator by its name in `CALIBRATORS`.

    Example:
        >>> make_calibrator("temperature", bounds=(0.5, 5.0))
        TemperatureScaling(unfitted)
    """
    check_choice("method", method, CALIBRATORS)
    try:
        return CALIBRATORS[method](**options)
    except TypeError as error:
        known = CALIBRATORS[method]().options()
        if set(options) <= set(known):
            raise
        unknown = ", ".join(sorted(set(options) - set(known)))
        raise ValueError(
            f"Expected options of {method} among {', '.join(known)}, but got {unknown}."
        ) from error


def __getattr__(name: str) -> Any:
    if name == "LocalTemperature":
        return importlib.import_module("segcal.posthoc.local").LocalTemperature
    raise AttributeError(f"module 'segcal.posthoc' has no attribute {name!r}")
