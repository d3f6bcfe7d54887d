"""Metrics of segmentations and their probabilities.

`evaluate_case` computes every metric of a case; `CalibrationBins` and `ProperScores` count a stream
of voxels; `dsc` and `surface_distances` compare label maps; `METRICS` has the registered metrics.
"""

from segcal.metrics import catalog  # noqa: F401  (registers the metrics of segcal)
from segcal.metrics.calibration import (
    BALANCED_GAP,
    CalibrationBins,
    Reliability,
    confidence_verdict,
)
from segcal.metrics.case import CaseResult, evaluate_case, pool_cases
from segcal.metrics.case_data import CaseData, RegionData, StructureData, predicted_labels
from segcal.metrics.ensemble import (
    entropy,
    mean_pairwise_dice,
    mutual_information,
    pair_tables,
    probability_variance,
)
from segcal.metrics.heads import evaluate_heads
from segcal.metrics.levels import LEVELS, ConfidenceLevels
from segcal.metrics.options import CaseOptions
from segcal.metrics.overlap import POOR_DSC, check_groups, confusion, dsc, dsc_from_confusion
from segcal.metrics.readers import Readers, crps, energy_distance, threshold_samples
from segcal.metrics.regions import (
    DEFAULT_REGION,
    REGIONS,
    all_voxels,
    boundary,
    foreground,
    predicted,
    predicted_boundary,
    union,
)
from segcal.metrics.registry import (
    METRICS,
    Metric,
    default_metrics,
    find_metric,
    get_metric,
    ranking_direction,
)
from segcal.metrics.rows import COLUMNS, POOLED, Row
from segcal.metrics.scores import ProperScores, adaptive_ece, brier_parts
from segcal.metrics.surface import all_surface_distances, surface_distances
from segcal.metrics.voxel_sums import VoxelStatistics, voxel_statistics

__all__ = [
    "BALANCED_GAP", "COLUMNS", "DEFAULT_REGION", "LEVELS", "METRICS", "POOLED", "POOR_DSC",
    "REGIONS", "CalibrationBins", "CaseData", "CaseOptions", "CaseResult", "ConfidenceLevels",
    "Metric", "ProperScores", "Readers", "RegionData", "Reliability", "Row", "StructureData",
    "VoxelStatistics", "adaptive_ece", "all_surface_distances", "all_voxels", "boundary",
    "brier_parts", "check_groups", "confidence_verdict", "confusion", "crps", "default_metrics",
    "dsc", "dsc_from_confusion", "energy_distance", "entropy", "evaluate_case", "evaluate_heads",
    "find_metric", "foreground", "get_metric", "mean_pairwise_dice", "mutual_information",
    "pair_tables", "pool_cases", "predicted", "predicted_boundary", "predicted_labels",
    "probability_variance", "ranking_direction", "surface_distances", "threshold_samples", "union",
    "voxel_statistics",
]  # fmt: skip
