"""Short sentences on the most important results; each names a number and where it was measured."""

from segcal.report.context import Context
from segcal.report.findings import calibration, ranking, training


def all_findings(context: Context) -> list[str]:
    """The findings, most important first."""
    found: list[str] = []
    if not context.empty:
        found = [
            *ranking.first_place(context),
            *ranking.best_of_datasets(context),
            *ranking.reference_place(context),
            *ranking.significance(context),
            *ranking.seed_variance(context),
            *ranking.unshared_cases(context),
            *calibration.after_training(context),
            *calibration.against_truth(context),
        ]
    return [*found, *training.failed_runs(context), *training.breakdowns(context)]
