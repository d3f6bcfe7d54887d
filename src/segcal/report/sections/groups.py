"""Groups of methods beside the main one: ablations, priors and calibration after training."""

from functools import partial

from segcal.core.errors import PathError
from segcal.report.blocks import Section, optional_section
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


def _build(context: Context, group: str, name: str) -> Section | None:
    """A table of the group in every region; a study cannot leave out that of calibrators."""
    if name != "posthoc" and not context.includes(name):
        return None
    about = group_of(context, group)
    tables = context.by_region(partial(group_table, context, group=group, name=name))
    return optional_section(name, about.title, tables, text=about.note)


def build_ablation(context: Context) -> Section | None:
    """A table of the ablations in every region."""
    return _build(context, "ablation", "ablation")


def build_priors(context: Context) -> Section | None:
    """A table of the networks with other priors in every region."""
    return _build(context, "prior", "priors")


def build_posthoc(context: Context) -> Section | None:
    """A table of the networks with and without their calibrators in every region."""
    return _build(context, "posthoc", "posthoc")


def group_of(context: Context, group: str) -> MethodGroup:
    """Title, note and base of a group: those of the study, else the defaults."""
    given, default = context.study.info.groups.get(group, MethodGroup()), _DEFAULTS[group]
    base, note = "", default.note
    if group != "posthoc":
        base = given.base or _find_base(context, group)
        if base and base not in context.study.methods:
            raise PathError(
                context.study.folder / "study.json",
                f"`groups.{group}.base` names {base!r}, which is not a method of the study",
            )
        note = note.format(base=context.title(base)) if base else ""
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
    study, about = context.study, group_of(context, group)
    below: dict[str, list[str]] = {}  # base -> methods
    for method in study.in_group(group):
        base = method.rsplit("+", 1)[0] if group == "posthoc" else about.base
        below.setdefault(base, []).append(method)
    rows = [m for base, of in below.items() for m in (base, *of) if m in study.methods]
    # A line between the networks with their calibrators, or below the method that others vary.
    rules = set(list(below)[1:]) if group == "posthoc" else {of[0] for b, of in below.items() if b}
    return method_table(context, region, rows, name, about.title, rules)
