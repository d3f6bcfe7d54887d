"""Groups of methods beside the main one: ablations, priors and calibration after training."""

from functools import partial

from segcal.core.errors import PathError
from segcal.report.blocks import Block, Section, Text
from segcal.report.context import Context
from segcal.report.sections.main import method_table
from segcal.report.table_model import Table
from segcal.study import MethodGroup

# Group of methods -> title and note, for studies that have none for it; {base} is the method
# that the others of the group vary.
_DEFAULTS = {
    "ablation": MethodGroup(
        title="Ablation", note="Each row changes one choice of {base}; the first row changes none."
    ),
    "prior": MethodGroup(
        title="Priors", note="{base} with other priors; the first row has its own prior."
    ),
    "posthoc": MethodGroup(
        title="Calibration after training",
        note="Calibrators fitted to validation cases, below the network that they calibrate. The "
        "same cases selected its checkpoint.",
    ),
}


def build_ablation(context: Context) -> Section | None:
    """Methods of group ablation, below the method that they vary."""
    return _build(context, "ablation", "ablation")


def build_priors(context: Context) -> Section | None:
    """Methods of group prior, below the method that they vary."""
    return _build(context, "prior", "priors")


def build_posthoc(context: Context) -> Section | None:
    """Calibrated methods, each below its network; a study cannot leave this table out."""
    return _build(context, "posthoc", "posthoc")


def _build(context: Context, group: str, name: str) -> Section | None:
    if name != "posthoc" and not context.includes(name):
        return None
    about = group_of(context, group)
    tables = context.by_region(partial(group_table, context, group=group, name=name))
    if not tables:
        return None
    note: list[Block] = [Text(about.note)] if about.note else []
    return Section(name, about.title, [*note, *tables])


def group_of(context: Context, group: str) -> MethodGroup:
    """Title, note and base of a group: those of the study, else the defaults."""
    given, default = context.study.info.groups.get(group, MethodGroup()), _DEFAULTS[group]
    base = "" if group == "posthoc" else given.base or _find_base(context, group)
    if base and base not in context.study.methods:
        raise PathError(
            context.study.folder / "study.json",
            f"`groups.{group}.base` names {base!r}, which is not a method of the study",
        )
    note = default.note.format(base=context.title(base)) if base else ""
    if group == "posthoc":
        note = default.note
    return MethodGroup(title=given.title or default.title, note=given.note or note, base=base)


def _find_base(context: Context, group: str) -> str:
    """The first main method with the loss of the group's methods, else the named reference."""
    study = context.study
    losses = {study.methods[m].options.get("loss") for m in study.in_group(group)} - {None}
    main = study.in_group("main")
    same = [m for m in main if study.methods[m].options.get("loss") in losses]
    named = [study.named.method] if study.named and study.named.method in main else []
    return next(iter([*same, *named]), "")


def group_table(context: Context, region: str, group: str, name: str) -> Table | None:
    """The methods of a group, below the method that they vary."""
    study = context.study
    members, about = study.in_group(group), group_of(context, group)
    if not members:
        return None
    if group == "posthoc":
        bases = dict.fromkeys(m.rsplit("+", 1)[0] for m in members)
        rows = [
            m
            for base in bases
            for m in (base, *(x for x in members if x.rsplit("+", 1)[0] == base))
            if m in study.methods
        ]
        rules = {b for b in list(bases)[1:] if b in study.methods}
    else:
        rows = [about.base, *members] if about.base else members
        rules = {members[0]} if about.base else set()
    return method_table(context, region, rows, name=name, title=about.title, rules=rules)
