"""Metrics over arrays: calibration, proper scores, regions, overlap, surfaces, rankings."""

from segcal.metrics.calibration import (
    BALANCED_GAP,
    CalibrationBins,
    Reliability,
    confidence_verdict,
)
from segcal.metrics.calibration_and_scores import Measured, measure
from segcal.metrics.case import CaseResult, evaluate_case, pool_cases
from segcal.metrics.overlap import confusion, dsc
from segcal.metrics.regions import DEFAULT_REGION, REGIONS, all_voxels, boundary, foreground, union
from segcal.metrics.scores import (
    BrierParts,
    ProperScores,
    adaptive_ece,
    brier,
    brier_parts,
    nll,
)
from segcal.metrics.surface import SurfaceDistances, all_surface_distances, surface_distances
from segcal.metrics.table import COLUMNS, DIRECTIONS, POOLED, Row, check_table, summarize, to_frame

__all__ = [
    "BALANCED_GAP",
    "COLUMNS",
    "DEFAULT_REGION",
    "DIRECTIONS",
    "POOLED",
    "REGIONS",
    "BrierParts",
    "CalibrationBins",
    "CaseResult",
    "Measured",
    "ProperScores",
    "Reliability",
    "Row",
    "SurfaceDistances",
    "adaptive_ece",
    "all_surface_distances",
    "all_voxels",
    "boundary",
    "brier",
    "brier_parts",
    "check_table",
    "confidence_verdict",
    "confusion",
    "dsc",
    "evaluate_case",
    "foreground",
    "measure",
    "nll",
    "pool_cases",
    "summarize",
    "surface_distances",
    "to_frame",
    "union",
]
