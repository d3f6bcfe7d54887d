"""Runs that failed, and trainings that broke down."""

from collections.abc import Sequence

from segcal.report.context import Context
from segcal.report.text import count, join
from segcal.study import BREAKDOWN_SHARE, Training


def failed_runs(context: Context) -> list[str]:
    """How many runs did not finish."""
    failed = [run.run for run in context.study.failed]
    if not failed:
        return []
    named = join(failed[:3]) + (", …" if len(failed) > 3 else "")
    total = count(len(context.study.info.runs), "run")
    return [f"{len(failed)} of {total} did not finish: {named}."]


def breakdowns(context: Context) -> list[str]:
    """Runs, and candidates of a search, whose validation DSC collapsed."""
    info, out = context.study.info, []
    runs = {run.run: run.training for run in info.runs if run.training}
    broken = {name: training for name, training in runs.items() if training.broke_down}
    if broken:
        each = [
            f"{name} ({t.best_dsc:.3f} in epoch {t.best_epoch}, {t.last_dsc:.3f} in epoch "
            f"{t.epochs})"
            for name, t in broken.items()
        ]
        out.append(
            f"{len(broken)} of {count(len(runs), 'training')} broke down (last validation DSC "
            f"below {BREAKDOWN_SHARE:.0%} of the best); the {_tested([*broken.values()])} "
            f"checkpoint was tested: {join(each)}."
        )
    tried = [t for method in info.methods for one in method.chosen_from for t in one.trainings]
    collapsed = [training for training in tried if training.broke_down]
    if collapsed:
        out.append(
            f"{len(collapsed)} of {count(len(tried), 'training')} that options were chosen by "
            f"broke down, judged by the {_tested(collapsed)} checkpoint: see “What was run”."
        )
    return out


def _tested(trainings: Sequence[Training]) -> str:
    return "best" if all(t.tested == t.best_epoch for t in trainings) else "last"
