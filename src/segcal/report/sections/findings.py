"""Findings: the most important results in short sentences, each with its numbers."""

from segcal.report.blocks import Block, Bullets, Section, Text
from segcal.report.context import Context
from segcal.report.findings import all_findings
from segcal.report.findings.calibration import REGION_NOTE, confidence_findings


def build(context: Context) -> Section | None:
    """The findings, then over- or under-confidence of each method."""
    blocks: list[Block] = []
    if context.empty:
        blocks.append(Text("No run of this study has finished: there is nothing to report yet."))
    found = all_findings(context)
    if found:
        blocks.append(Bullets(found))
    confidence = [] if context.empty else confidence_findings(context)
    if confidence:
        blocks += [
            Text("Over- and under-confidence", "heading"),
            Bullets(confidence),
            Text(REGION_NOTE, "note"),
        ]
    return Section("findings", "Findings", blocks)
