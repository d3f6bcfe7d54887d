"""Findings: the most important results in short sentences, each with its numbers."""

from segcal.report.blocks import Block, Bullets, Section, Text
from segcal.report.context import Context
from segcal.report.findings import calibration, ranking, training


def build(context: Context) -> Section:
    """The findings, most important first, then over- and under-confidence of the methods."""
    broken = [*training.failed_runs(context), *training.breakdowns(context)]
    if context.empty:
        nothing = Text("No run of this study has finished: there is nothing to report yet.")
        return Section("findings", "Findings", [nothing, Bullets(broken)])
    found = [
        *ranking.first_place(context),
        *ranking.best_of_datasets(context),
        *ranking.reference_place(context),
        *ranking.significance(context),
        *ranking.seed_variance(context),
        *ranking.unshared_cases(context),
        *calibration.after_training(context),
        *calibration.against_truth(context),
        *broken,
    ]
    blocks: list[Block] = [Bullets(found)]
    confidence = calibration.confidence_findings(context)
    if confidence:
        blocks += [
            Text("Over- and under-confidence", "heading"),
            Bullets(confidence),
            Text(calibration.REGION_NOTE, "note"),
        ]
    return Section("findings", "Findings", blocks)
