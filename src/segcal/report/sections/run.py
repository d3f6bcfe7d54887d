"""What was run: datasets, methods, failures, undefined values and the environment."""

from collections.abc import Sequence

from segcal.report.blocks import Block, Section, Text
from segcal.report.context import Context
from segcal.report.table_model import Table, text_table
from segcal.report.text import options
from segcal.study import Candidate

_HOW = (
    "The value of a case is the mean over its structures that have one; the value of a seed is the "
    "mean over its cases; tables show the mean over seeds ± their standard deviation (n − 1). "
    "ECE and CECE use bins of equal width that include their upper edge."
)


def build(context: Context) -> Section | None:
    """Everything that a reader needs to repeat the study."""
    info = context.study.info
    split = "" if info.kind == "audit" else f", split “{info.split}”"
    blocks: list[Block] = [
        Text(f"Datasets{split}", "heading"),
        _datasets(context),
        Text("Methods", "heading"),
        _methods(context),
    ]
    failed = context.study.failed
    if failed:
        rows = [("", (run.run, run.state, run.error or "unknown")) for run in failed]
        table = text_table("failed", "Failed runs", ("Run", "State", "Reason"), rows)
        blocks += [Text("Runs that did not finish", "heading"), table]
    blocks += [Text("How the numbers are computed", "heading"), Text(_HOW)]
    if context.study.info.environment:
        blocks.append(Text(f"{options(context.study.info.environment)}.", "note"))
    return Section("run", "What was run", blocks)


def _datasets(context: Context) -> Table:
    rows = []
    for d in context.datasets:
        cases = str(context.aggregates.case_count(d.name))
        rows.append(("", (d.title, d.source, cases, ", ".join(d.labels), d.fingerprint[:12])))
    headings = ("Dataset", "Source", "Cases", "Classes", "Fingerprint")
    return text_table("datasets", "Datasets", headings, rows)


def _methods(context: Context) -> Table:
    rows = []
    for method in context.study.methods.values():
        runs = [run for run in context.study.info.runs if run.method == method.name]
        done = sum(run.state == "done" for run in runs)
        finished = f"{done} of {len(runs)}" if runs else ""
        words = (method.title, method.group, options(method.options))
        rows.append((method.name, (*words, candidates(method.chosen_from), finished)))
    headings = ("Method", "Group", "Options", "Chosen from (validation DSC)", "Runs finished")
    return text_table("methods", "Methods", headings, rows)


def candidates(tried: Sequence[Candidate]) -> str:
    """The options that a method's options were chosen from, with validation DSC and ECE."""
    out = []
    for one in tried:
        text = f"{options(one.options)}: "
        text += "failed" if one.val_dsc is None else f"{one.val_dsc:.3f}"
        if one.val_ece is not None:
            text += f" (ECE {one.val_ece:.3f})"
        if one.broke_down:
            several = f"{one.broke_down} of {len(one.trainings)} " if len(one.trainings) > 1 else ""
            text += f", {several}broke down"
        out.append(text)
    return "; ".join(out)
