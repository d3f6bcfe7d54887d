"""The sections of the report, in the order of the page.

A section is a function `build(context)` that returns a `Section`, or None if the study has nothing
to show in it. A new one needs no other edit: register it, offer it as an entry point of the group
`segcal.sections`, or name it on the command line (`--section package.module:build`).
"""

from collections.abc import Callable

from segcal.registry import Registry
from segcal.report.blocks import Section
from segcal.report.context import Context

Build = Callable[[Context], Section | None]

SECTIONS: Registry[Build] = Registry(
    "section", "segcal.sections", callable, "a function build(context) -> Section or None"
)
for _name, _build in (
    ("findings", "findings:build"),
    ("stated_confidence", "stated_confidence:build"),
    ("volumes", "volumes:build"),
    ("hypotheses", "hypotheses:build"),
    ("main", "main:build"),
    ("ranking", "ranking:build"),
    ("seeds", "seeds:build"),
    ("external", "external:build"),
    ("reliability", "reliability:build"),
    ("cases", "cases:build"),
    ("pictures", "pictures:build"),
    ("ablation", "groups:build_ablation"),
    ("priors", "groups:build_priors"),
    ("posthoc", "groups:build_posthoc"),
    ("absent", "absent_structures:build"),
    ("classes", "classes:build"),
    ("case_groups", "external:build_groups"),
    ("logits", "logits:build"),
    ("training", "training:build"),
    ("truth", "truth:build"),
    ("readers", "readers:build"),
    ("run", "run:build"),
):
    SECTIONS.register(_name, f"segcal.report.sections.{_build}")
