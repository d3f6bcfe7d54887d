"""Post-hoc calibration: correct the confidence of a trained network on held-out cases.

TemperatureScaling       one number; labels do not change
DistanceScaling          a temperature by class and distance to the surface; labels do not change
MixtureScaling           the same, with a rate of confident errors; labels do not change
ClassAffineScaling       an affine map per predicted class; labels do not change
InverseSmoothing         undo label smoothing or NACL; needs no data; labels do not change
VectorScaling            a scale and an offset per class
DirichletScaling         a matrix on log-probabilities, with ODIR regularization
MatrixScaling            the same on raw logits
HeadCalibrator           one of them for each region of a network with sigmoid outputs
load_calibrator          any of them from its file
CALIBRATORS              all of them by name; a new one is a subclass of `Calibrator`
"""

from segcal.posthoc._blocks import BlockReader, HeldOut
from segcal.posthoc.calibrator import (
    CALIBRATORS,
    BaseCalibrator,
    Calibrator,
    FitReport,
    make_calibrator,
    short_name,
    to_probs,
)
from segcal.posthoc.class_affine import ClassAffineScaling
from segcal.posthoc.dirichlet import DirichletScaling, MatrixScaling
from segcal.posthoc.distance import DistanceScaling, surface_distance
from segcal.posthoc.files import calibrator_content, calibrator_from, load_calibrator
from segcal.posthoc.heads import HeadCalibrator, as_two_classes
from segcal.posthoc.inverse import InverseSmoothing
from segcal.posthoc.mixture import MixtureScaling
from segcal.posthoc.sample import Balance, Sample, Voxels
from segcal.posthoc.temperature import TemperatureScaling
from segcal.posthoc.vector import VectorScaling

__all__ = [
    "CALIBRATORS", "Balance", "BaseCalibrator", "BlockReader", "Calibrator", "ClassAffineScaling",
    "DirichletScaling", "DistanceScaling", "FitReport", "HeadCalibrator", "HeldOut",
    "InverseSmoothing", "MatrixScaling", "MixtureScaling", "Sample", "TemperatureScaling",
    "VectorScaling", "Voxels", "as_two_classes", "calibrator_content", "calibrator_from",
    "load_calibrator", "make_calibrator", "short_name", "surface_distance", "to_probs",
]  # fmt: skip

CALIBRATORS.register("temperature", TemperatureScaling)
CALIBRATORS.register("distance", DistanceScaling)
CALIBRATORS.register("mixture", MixtureScaling)
CALIBRATORS.register("class_affine", ClassAffineScaling)
CALIBRATORS.register("inverse", InverseSmoothing)
CALIBRATORS.register("vector", VectorScaling)
CALIBRATORS.register("dirichlet", DirichletScaling)
CALIBRATORS.register("matrix", MatrixScaling)
