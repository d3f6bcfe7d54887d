"""The reference of a study: the method that is compared with every other method."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from segcal.study.reader import Study

# Where the reference was named: in the plan before results existed ("plan") or afterwards ("late"),
# in study.json without that information ("study"), or for this report only ("report").
NamedIn = Literal["plan", "late", "study", "report"]


@dataclass(frozen=True)
class Named:
    """A reference that was named, and where."""

    method: str
    where: NamedIn


def find_named(study: "Study", requested: str | None = None) -> Named | None:
    """The `requested` method, else the reference of study.json; an unknown one raises."""
    info = study.info
    if requested is not None and requested != info.reference:
        _check("--reference", requested, study)
        return Named(requested, "report")
    if info.reference is None:
        return None
    _check(f"`reference` of {study.folder / 'study.json'}", info.reference, study)
    if info.reference_late is None:
        return Named(info.reference, "study")
    return Named(info.reference, "late" if info.reference_late else "plan")


def _check(origin: str, name: str, study: "Study") -> None:
    ranked = study.compared
    if name in ranked:
        return
    if name in study.methods:
        problem = f"is in group {study.methods[name].group}, which is not ranked"
    else:
        near = get_close_matches(name, ranked, n=1)
        problem = "is not a method of the study"
        problem += f". Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{origin}: {name!r} {problem}; ranked methods: {', '.join(ranked)}")
