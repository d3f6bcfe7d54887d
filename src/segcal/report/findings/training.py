"""Runs that failed, and trainings that broke down."""

from segcal.report.context import Context
from segcal.report.text import count, join
from segcal.study import BREAKDOWN_SHARE


def failed_runs(context: Context) -> list[str]:
    """How many runs did not finish."""
    failed = [run.run for run in context.study.failed]
    if not failed:
        return []
    named = join(failed[:3]) + (", …" if len(failed) > 3 else "")
    return [
        f"{len(failed)} of {count(len(context.study.info.runs), 'run')} did not finish ({named}); "
        "their numbers come from the other seeds, or are missing."
    ]


def breakdowns(context: Context) -> list[str]:
    """Runs, and candidates of a search, whose validation DSC collapsed."""
    out = []
    runs = [(run.run, run.training) for run in context.study.info.runs if run.training]
    broken = [(name, training) for name, training in runs if training.broke_down]
    if broken:
        each = [
            f"{name} ({training.best_dsc:.3f} in epoch {training.best_epoch}, "
            f"{training.last_dsc:.3f} in epoch {training.epochs})"
            for name, training in broken
        ]
        best = all(training.tested == training.best_epoch for _, training in broken)
        tested = "the best checkpoint, from before," if best else "the last checkpoint"
        out.append(
            f"{len(broken)} of {count(len(runs), 'training')} broke down (last validation DSC "
            f"below {BREAKDOWN_SHARE:.0%} of the best); {tested} was tested: {join(each)}."
        )
    tried = [one for method in context.study.info.methods for one in method.chosen_from]
    trained = [training for one in tried for training in one.trainings]
    collapsed = [training for training in trained if training.broke_down]
    if collapsed:
        best = all(training.tested == training.best_epoch for training in collapsed)
        judged = "best checkpoint" if best else "last checkpoint"
        out.append(
            f"{len(collapsed)} of {count(len(trained), 'training')} that options were chosen by "
            f"broke down and were judged by their {judged}: see “What was run”."
        )
    return out
