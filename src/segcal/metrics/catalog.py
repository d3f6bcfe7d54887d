"""The metrics of segcal. To add one, write a function and one `Metric` in the list below."""

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import divide, to_numpy
from segcal.metrics import readers
from segcal.metrics.case_data import CaseData, RegionData, StructureData
from segcal.metrics.ensemble import pairwise_dice
from segcal.metrics.overlap import dsc_from_confusion
from segcal.metrics.registry import METRICS, Metric
from segcal.metrics.scores import brier_parts

_SHARE, _SIGNED_SHARE, _POSITIVE = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)
# Lower bound of a predicted probability in the Kullback-Leibler divergence.
_KL_CLIP = 1e-7


def dice(structure: StructureData) -> float:
    """Dice similarity coefficient."""
    case = structure.case
    return dsc_from_confusion(case.confusion, structure.labels, case.options.empty)


def surface_dice(structure: StructureData) -> float:
    """Share of both surfaces within the tolerance of the other."""
    return structure.distances.nsd(structure.case.options.nsd_tolerance_mm)


def true_volume_ml(structure: StructureData) -> float:
    """Volume of the true mask."""
    return structure.voxel_ml * float(structure.case.confusion[list(structure.labels)].sum())


def predicted_volume_ml(structure: StructureData) -> float:
    """Volume of the predicted mask, by the largest probability."""
    return structure.voxel_ml * float(structure.case.confusion[:, list(structure.labels)].sum())


def expected_volume_ml(structure: StructureData) -> float:
    """Sum of the probabilities times the volume of a voxel."""
    mass = structure.case.counts.class_mass[list(structure.labels)]
    return structure.voxel_ml * float(mass.sum())


def mean_abs_logits(case: CaseData) -> npt.NDArray[np.float64]:
    """(K,): mean over the voxels of each true class of mean_k |logit_k|; NaN without a voxel."""
    logits: Any = case.logits
    size = to_numpy(abs(logits).mean(0)).ravel()
    labels = case.target.ravel()
    valid = (labels >= 0) & (labels < case.num_classes)
    if not valid.all():
        size, labels = size[valid], labels[valid]
    total = np.bincount(labels, weights=size, minlength=case.num_classes)
    count = np.bincount(labels, minlength=case.num_classes)
    return divide(total, count)


def mean_abs_error(case: CaseData) -> float:
    """Mean absolute difference between predicted and true probabilities."""
    difference = _float32(case.probs) - case.normalized_true_probs
    return float(np.abs(difference).mean(dtype=np.float64))


def kl_divergence(case: CaseData) -> float:
    """Mean over voxels of the Kullback-Leibler divergence of the true from the predicted."""
    true = case.normalized_true_probs
    ratio = np.log(np.maximum(true, _KL_CLIP)) - np.log(np.maximum(_float32(case.probs), _KL_CLIP))
    return float((true * ratio).sum(0).mean(dtype=np.float64))


def _float32(probs: Any) -> npt.NDArray[np.float32]:
    return to_numpy(probs).astype(np.float32, copy=False)


_structure = partial(Metric, scope="structure", default=True, limits=_POSITIVE)
_overlap = partial(_structure, limits=_SHARE)
_distance = partial(_structure, better="lower", suffix="unit")
_calibration = partial(Metric, scope="region", additive=True, default=True, limits=_SHARE)
_gap = partial(_calibration, better="zero", limits=_SIGNED_SHARE)
_error = partial(_calibration, better="lower")
_score = partial(_calibration, limits=_POSITIVE)
_loss = partial(_score, better="lower")
_reader_error = partial(_error, requires="readers")
_reader_loss = partial(_loss, requires="readers")
_image = partial(Metric, scope="image", default=True, limits=_POSITIVE)
_against_truth = partial(_image, better="lower", requires="true_probs")
_by_reader = partial(_structure, requires="readers")

_BUILT_IN = (
    _overlap("dsc", "DSC", dice, "higher"),
    _overlap("nsd", "NSD", surface_dice, "higher", suffix="tolerance"),
    _distance("hd95", "HD95", lambda s: s.distances.hd95()),
    _distance("hd95_max", "HD95 (max)", lambda s: s.distances.hd95("max")),
    _distance("hd", "HD", lambda s: s.distances.hausdorff()),
    _distance("assd", "ASSD", lambda s: s.distances.assd()),
    _structure("true_volume_ml", "true volume", true_volume_ml, None, unit="ml"),
    _structure("predicted_volume_ml", "predicted volume", predicted_volume_ml, None, unit="ml"),
    _structure("expected_volume_ml", "expected volume", expected_volume_ml, None, unit="ml"),
    _error("ece", "ECE", lambda r: r.bins.ece()),
    _gap("debiased_ece", "debiased ECE", lambda r: r.bins.debiased_ece()),
    _error("cece", "CECE", lambda r: r.bins.cece()),
    _error("ace", "ACE", lambda r: r.bins.ace()),
    _error("mce", "MCE", lambda r: r.bins.mce()),
    _error("adaptive_ece", "adaptive ECE", RegionData.adaptive_ece, additive=False),
    _gap("signed_gap", "signed gap", lambda r: r.bins.signed_gap()),
    _loss("brier", "Brier", lambda r: r.scores.brier()),
    _loss("brier_reliability", "Brier reliability", lambda r: brier_parts(r.bins).reliability),
    _score(
        "brier_resolution", "Brier resolution", lambda r: brier_parts(r.bins).resolution, "higher"
    ),
    _score(
        "brier_uncertainty", "Brier uncertainty", lambda r: brier_parts(r.bins).uncertainty, None
    ),
    _loss("nll", "NLL", lambda r: r.scores.nll(), unit="nats"),
    _error("class_ece", "class ECE", lambda r: r.bins.classwise_ece()),
    _gap("class_signed_gap", "class signed gap", lambda r: r.bins.classwise_signed_gap()),
    _calibration("mean_confidence", "confidence", lambda r: r.bins.mean_confidence(), None),
    _image("mean_abs_logit", "mean |logit|", mean_abs_logits, None, requires="logits"),
    _against_truth("truth_ece", "true ECE", lambda c: c.true_bins.ece()),
    _against_truth("truth_cece", "true CECE", lambda c: c.true_bins.cece()),
    _against_truth("truth_mae", "mean |p − p*|", mean_abs_error),
    _against_truth("truth_kl", "KL(p*‖p)", kl_divergence, unit="nats"),
    _reader_error("reader_ece", "reader ECE", lambda r: r.bins.ece()),
    _reader_error("reader_cece", "reader CECE", lambda r: r.bins.cece()),
    _gap("reader_signed_gap", "reader gap", lambda r: r.bins.signed_gap(), requires="readers"),
    _reader_loss("reader_brier", "reader Brier", lambda r: r.scores.brier()),
    _reader_loss("reader_nll", "reader NLL", lambda r: r.scores.nll(), unit="nats"),
    _overlap("reader_dsc", "reader DSC", readers.reader_dsc, "higher", requires="readers"),
    _by_reader("reader_volume_ml", "volume error", readers.reader_volume_ml, "lower", unit="ml"),
    _by_reader("reader_ged", "energy distance", readers.reader_ged, "lower"),
    _by_reader("reader_crps_ml", "volume CRPS", readers.reader_crps_ml, "lower", unit="ml"),
    _overlap("human_dsc", "human DSC", readers.human_dsc, None, requires="readers"),
    _by_reader("human_volume_ml", "human volume", readers.human_volume_ml, None, unit="ml"),
    _overlap("pairwise_dice", "pairwise Dice", pairwise_dice, None, requires="members"),
    _image("human_brier", "human Brier", readers.human_brier, None, requires="readers"),
)
for _metric in _BUILT_IN:
    METRICS.register(_metric.key, _metric)
