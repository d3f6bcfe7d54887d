"""Statistics over tables of per-case values."""

from segcal.stats.long_table import REQUIRED_COLUMNS, check_cells
from segcal.stats.random_effects import Crossed, compare_crossed, crossed
from segcal.stats.ranking import CaseScores, collect, mean_case_rank, sum_rank
from segcal.stats.significance import bootstrap_means, bootstrap_ranks, compare, holm
from segcal.stats.summary import method_means

__all__ = [
    "REQUIRED_COLUMNS",
    "CaseScores",
    "Crossed",
    "bootstrap_means",
    "bootstrap_ranks",
    "check_cells",
    "collect",
    "compare",
    "compare_crossed",
    "crossed",
    "holm",
    "mean_case_rank",
    "method_means",
    "sum_rank",
]
