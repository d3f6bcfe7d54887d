"""Statistics over tables of per-case values."""

from segcal.stats.random_effects import Crossed, compare_crossed, crossed
from segcal.stats.ranking import CaseScores, collect, mean_case_rank, sum_rank
from segcal.stats.significance import bootstrap_means, bootstrap_ranks, compare, holm
from segcal.stats.summary import method_means

__all__ = [
    "CaseScores",
    "Crossed",
    "bootstrap_means",
    "bootstrap_ranks",
    "collect",
    "compare",
    "compare_crossed",
    "crossed",
    "holm",
    "mean_case_rank",
    "method_means",
    "sum_rank",
]
