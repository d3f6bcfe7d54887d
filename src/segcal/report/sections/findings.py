"""Findings: the most important results in short sentences, each with its numbers."""

from collections.abc import Sequence

from segcal.core.text import first_few
from segcal.report.blocks import Block, Bullets, Section, Text
from segcal.report.context import Context
from segcal.report.findings import calibration, ranking, stated_confidence, verdict
from segcal.report.sections import absent_structures, volumes
from segcal.report.text import count, join
from segcal.study import BREAKDOWN_SHARE, Training, read_evaluation


def build(context: Context) -> Section:
    """The findings, most important first, then over- and under-confidence of the methods."""
    broken = [*failed_runs(context), *breakdowns(context)]
    if context.empty:
        nothing = Text("No run of this study has finished: there is nothing to report yet.")
        return Section("findings", "Findings", [nothing, Bullets(broken)])
    found = [
        *stated_confidence.sentences(context),
        *ranking.first_place(context),
        *ranking.best_of_datasets(context),
        *volumes.findings(context),
        *absent_structures.findings(context),
        *ranking.reference_place(context),
        *ranking.significance(context),
        *ranking.seed_variance(context),
        *ranking.unshared_cases(context),
        *calibration.after_training(context),
        *calibration.against_truth(context),
        *broken,
    ]
    blocks: list[Block] = [*seen_scans(context), *network_verdicts(context), Bullets(found)]
    confidence = calibration.confidence_findings(context)
    if confidence:
        blocks += [
            Text("Over- and under-confidence", "heading"),
            Bullets(confidence),
            Text(calibration.REGION_NOTE, "note"),
        ]
    return Section("findings", "Findings", blocks)


def seen_scans(context: Context) -> list[Block]:
    """A warning on each audited network that was trained or calibrated on scans of the audit."""
    if context.study.info.kind != "audit":
        return []
    out: list[Block] = []
    for run, path in context.study.files("evaluation.json"):
        found = read_evaluation(path.parent)
        if found is not None and found.info.seen:
            scans = f"{len(found.info.seen)} of these scans ({first_few(found.info.seen)})"
            text = f"was trained, validated or calibrated on {scans}; its results are optimistic."
            out.append(Text(f"{context.title(run.method)}: {text}", "note"))
    return out


def network_verdicts(context: Context) -> list[Block]:
    """Whether to trust each network, organ by organ, and what to do next."""
    out: list[Block] = []
    for dataset in context.datasets:
        found = verdict.verdicts(context, dataset)
        for method, each in found.items():
            out.append(Text(f"{context.title(method)}: {verdict.describe(each)}", "verdict"))
        if context.has_many_organs(dataset):
            worst = verdict.verdict_table(context, dataset, context.most_organs)
            out += [worst] if worst is not None else []
        out += context.collapse_organs(dataset, [verdict.verdict_table(context, dataset)])
        if context.study.info.kind == "audit":
            for text, commands in verdict.next_steps(context, dataset):
                out.append(Text(text))
                out += [Text("\n".join(commands), "command")] if commands else []
    return out


def failed_runs(context: Context) -> list[str]:
    """How many runs did not finish."""
    failed = [run.run for run in context.study.failed]
    if not failed:
        return []
    named = join(failed[:3]) + (", …" if len(failed) > 3 else "")
    total = count(len(context.study.info.runs), "run")
    return [f"{len(failed)} of {total} did not finish ({named})."]


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
