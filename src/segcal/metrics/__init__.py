"""Metrics over arrays: calibration, proper scores, regions, overlap, surfaces, rankings."""

from segcal.metrics.calibration import CalibrationBins, Reliability
from segcal.metrics.calibration_and_scores import Measured, measure
from segcal.metrics.case import CaseResult, evaluate_case, pool_cases
from segcal.metrics.overlap import confusion, dsc
from segcal.metrics.regions import REGIONS, all_voxels, boundary, foreground, union
from segcal.metrics.scores import (
    BrierParts,
    ProperScores,
    adaptive_ece,
    brier,
    brier_parts,
    nll,
)
from segcal.metrics.surface import SurfaceDistances, all_surface_distances, surface_distances
from segcal.stats.random_effects import Crossed, compare_crossed, crossed
from segcal.stats.ranking import CaseScores, collect, mean_case_rank, sum_rank
from segcal.stats.significance import bootstrap_means, bootstrap_ranks, compare, holm
from segcal.stats.summary import method_means
from segcal.stats.table import COLUMNS, DIRECTIONS, POOLED, Row, check_table, summarize, to_frame

__all__ = [
    "COLUMNS",
    "DIRECTIONS",
    "POOLED",
    "REGIONS",
    "BrierParts",
    "CalibrationBins",
    "CaseResult",
    "CaseScores",
    "Crossed",
    "Measured",
    "ProperScores",
    "Reliability",
    "Row",
    "SurfaceDistances",
    "adaptive_ece",
    "all_surface_distances",
    "all_voxels",
    "bootstrap_means",
    "bootstrap_ranks",
    "boundary",
    "brier",
    "brier_parts",
    "check_table",
    "collect",
    "compare",
    "compare_crossed",
    "confusion",
    "crossed",
    "dsc",
    "evaluate_case",
    "foreground",
    "holm",
    "mean_case_rank",
    "measure",
    "method_means",
    "nll",
    "pool_cases",
    "sum_rank",
    "summarize",
    "surface_distances",
    "to_frame",
    "union",
]
