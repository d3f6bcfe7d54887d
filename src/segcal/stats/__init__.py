"""Statistics over the long table: means, ranks, intervals and tests. They need pandas."""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.core.patients import patients_of
from segcal.stats.intervals import (
    Estimate,
    clopper_pearson,
    clustered_interval,
    jackknife_interval,
    mean_interval,
    pooled_proportion,
    unpaired_difference,
)
from segcal.stats.long_table import REQUIRED_COLUMNS, check_cells, check_table, to_frame
from segcal.stats.method_ranking import Ranking, find_eligible, rank_methods, ranked_methods
from segcal.stats.patients import by_patient, make_folds
from segcal.stats.random_effects import (
    RandomEffectsTest,
    compare_with_random_effects,
    two_way_random_effects,
)
from segcal.stats.ranking import (
    PAPER_METRICS,
    CaseScores,
    Missing,
    collect,
    mean_case_rank,
    sum_rank,
)
from segcal.stats.significance import (
    bootstrap_ranks,
    compare,
    distinct_hypotheses,
    holm,
    means_with_intervals,
)
from segcal.stats.summary import means_over_seeds, method_means, summarize

__all__ = [
    "PAPER_METRICS", "REQUIRED_COLUMNS", "CaseScores", "Estimate", "Missing",
    "RandomEffectsTest", "Ranking", "bootstrap_ranks", "by_patient", "check_cells",
    "check_table", "clopper_pearson", "clustered_interval", "collect", "compare",
    "compare_with_random_effects", "distinct_hypotheses", "find_eligible", "holm",
    "jackknife_interval", "make_folds", "mean_case_rank", "mean_interval", "means_over_seeds",
    "means_with_intervals", "method_means", "patients_of", "pooled_proportion", "rank_methods",
    "ranked_methods", "sum_rank", "summarize", "to_frame", "two_way_random_effects",
    "unpaired_difference",
]  # fmt: skip
