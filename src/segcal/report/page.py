"""The page: everything that was computed, handed to one template that escapes all text."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from segcal import __version__
from segcal.report.figures import Drawing
from segcal.report.live import script_json
from segcal.report.numbers import Numbers
from segcal.report.pictures import CasePicture, data_uri
from segcal.report.reliability import FEW_VOXELS, Curve
from segcal.report.style import CLASSES, colours
from segcal.report.table import Table, metric_column
from segcal.report.tables import undefined_by_metric
from segcal.study import Candidate, Study

TEMPLATES = Path(__file__).parent / "templates"
HOW = (
    "The value of a case is the mean over its structures that have one; the value of a seed the "
    "mean over its cases; printed is the mean over seeds ± their standard deviation (n − 1).",
    "ECE and CECE use equal, right-closed bins of the probability and are computed per case, then "
    "averaged; pooled diagrams add the voxels of all cases first and so give other numbers.",
    "Rankings and tests use one value per case (seeds averaged). Undefined values there become the "
    "worst that any method has (policy “worst”), unless nothing was there and nothing was found.",
)


@dataclass
class Parts:
    """What the page shows; empty parts leave no trace in it."""

    headline: list[str] = field(default_factory=list)
    confidence_words: list[tuple[str, str]] = field(default_factory=list)
    caveat: str = ""
    main: list[Table] = field(default_factory=list)
    groups: list[tuple[str, str, str, list[Table]]] = field(default_factory=list)
    classes: list[tuple[Any, list[Table]]] = field(default_factory=list)
    confidence: Table | None = None
    rank_drawing: Drawing | None = None
    rank_table: Table | None = None
    rank_note: str = ""
    significance: Drawing | None = None
    tests: Table | None = None
    test_count: int = 0
    patients_note: str = ""
    tests_of: str = ""
    tests_note: str = ""
    seeds: list[tuple[list[Table], Drawing, Any]] = field(default_factory=list)
    seeds_note: str = ""
    reliability: list[tuple[Drawing, str]] = field(default_factory=list)
    scatter: list[tuple[Drawing, str]] = field(default_factory=list)
    logits: list[tuple[Drawing, str]] = field(default_factory=list)
    courses: list[tuple[Drawing, Any]] = field(default_factory=list)
    truth: list[tuple[Table | None, Drawing | None, str]] = field(default_factory=list)
    pictures: list[CasePicture] = field(default_factory=list)


def render(
    numbers: Numbers, parts: Parts, drawn: Mapping[str, Markup], data: Mapping[str, Any]
) -> str:
    """The whole page as one text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    study = numbers.study
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {"words": words, "chosen": chosen}
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    names = list(study.methods)
    context = {
        **vars(parts),
        "info": study.info,
        "facts": _facts(numbers),
        "contents": _contents(parts),
        "region": study.region,
        "regions": study.regions,
        "methods": list(study.methods.values()),
        "datasets": list(study.datasets.values()),
        "colours": colours(names),
        "svg": drawn,
        "has_rows": not study.table.empty,
        "regional": {t.name for t in _regional(parts)},
        "pictures": [_picture(numbers, picture) for picture in parts.pictures],
        "case_counts": {name: numbers.case_count(name) for name in study.datasets},
        "run_counts": {name: _runs(study, name) for name in names},
        "failed": study.failed,
        "undefined": _undefined(numbers),
        "how": HOW,
        "ran_with": _ran_with(study.info.environment),
        "few": FEW_VOXELS,
        "version": __version__,
        "data": script_json(data),
        "css": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "js": Markup(script),
        "script_hash": f"sha256-{digest}",
    }
    return environment.get_template("report.html").render(context)


def _regional(parts: Parts) -> list[Table]:
    """Tables that the page has once for each region."""
    out = [*parts.main]
    out += [table for *_, tables in parts.groups for table in tables]
    out += [table for _, tables in parts.classes for table in tables]
    return out + [table for tables, *_ in parts.seeds for table in tables]


def _contents(parts: Parts) -> list[tuple[str, str]]:
    known: list[tuple[str, str, object]] = [
        ("findings", "Findings", True),
        ("main", "Main results", parts.main),
        ("ranks", "Rankings", parts.rank_drawing),
        ("seeds", "Seeds", parts.seeds_note),
        ("reliability", "Reliability", parts.reliability or parts.confidence),
        ("cases", "Cases", parts.scatter),
        *((name, title, True) for name, title, _, _ in parts.groups),
        ("classes", "Classes", parts.classes),
        ("logits", "Logits", parts.logits),
        ("training", "Training", parts.courses),
        ("truth", "True probabilities", parts.truth),
        ("pictures", "Pictures", parts.pictures),
        ("run", "What was run", True),
    ]
    return [(name, title) for name, title, there in known if there]


def _facts(numbers: Numbers) -> str:
    study = numbers.study
    sets = [f"{d.title} ({numbers.case_count(d.name)} cases)" for d in study.datasets.values()]
    methods = len(study.methods)
    out = [f"{methods} method{'s' if methods != 1 else ''}", ", ".join(sets)]
    if numbers.seeds > 1:
        out.append(f"{numbers.seeds} seeds")
    out.append(f"split {study.info.split}")
    if study.regions:
        out.append(f"calibration in region {study.region} unless said otherwise")
    return " · ".join(out)


def _runs(study: Study, method: str) -> str:
    runs = [run for run in study.info.runs if run.method == method]
    return f"{sum(run.state == 'done' for run in runs)} of {len(runs)}" if runs else "–"


def _undefined(numbers: Numbers) -> list[tuple[Any, Any, str, int]]:
    study = numbers.study
    return [
        (study.datasets[d], study.methods[m], metric_column(metric).title, number.undefined)
        for d, m, metric, number in undefined_by_metric(numbers, study.region)
    ]


def _picture(numbers: Numbers, picture: CasePicture) -> dict[str, Any]:
    study = numbers.study
    dataset, tone = study.datasets[picture.dataset], colours(list(study.methods))
    return {
        "dataset": dataset.name,
        "title": dataset.title,
        "role": picture.role,
        "case": picture.case,
        "dsc": picture.dsc,
        "classes": [
            (name, CLASSES[(i - 1) % len(CLASSES)]) for i, name in enumerate(dataset.labels) if i
        ],
        "image": data_uri(picture.image) if picture.has_image else "",
        "truth": data_uri(picture.truth),
        "methods": [
            {
                "method": m.method,
                "title": study.methods[m.method].title,
                "mask": data_uri(m.mask),
                "confidence": data_uri(m.confidence),
                "dsc": _number(m.dsc),
                "ece": _number(m.ece),
                "diagram": small_diagram(m.curve, tone[m.method]) if m.curve else None,
            }
            for m in picture.methods
        ],
    }


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def small_diagram(curve: Curve, colour: str) -> Markup:
    """A reliability diagram of the size of a stamp."""
    there = [i for i, n in enumerate(curve.count) if n > 0]
    known = [i for i in there if curve.count[i] >= FEW_VOXELS]
    top, bins = max(float(curve.count.max()), 1.0), len(curve.count)
    bar = 100 / bins
    bars = "".join(
        f"M{100 * i / bins:.1f} 100v{-22 * math.sqrt(curve.count[i] / top):.1f}h{bar:.1f}V100"
        for i in there
    )
    line = "L".join(
        f"{100 * curve.confidence[i]:.1f} {100 - 100 * curve.accuracy[i]:.1f}" for i in known
    )
    return Markup(
        '<svg viewBox="-2 -2 104 104" role="img" aria-label="Reliability, ECE {ece}">'
        '<path class="bar" d="{bars}"/><path class="axis" d="M0 0V100H100M0 100L100 0"/>'
        '<path d="{line}" fill="none" stroke="{colour}" stroke-width="2.4"/></svg>'
    ).format(ece=f"{curve.ece:.3f}", bars=bars, line=f"M{line}" if line else "", colour=colour)


def _ran_with(environment: Mapping[str, Any]) -> list[str]:
    """Where and with what runs were trained, in sentences."""
    trained, together = environment.get("trained"), environment.get("put_together")
    if not isinstance(trained, list) or not isinstance(together, Mapping):
        return [words(environment)] if environment else []
    out = [
        f"{place.get('runs')} run{'s' * (place.get('runs') != 1)} on {place.get('device')}: "
        f"{words({key: place[key] for key in ('commit', 'versions') if place.get(key)})}."
        for place in trained
        if isinstance(place, Mapping)
    ]
    return [*out, f"Put together with: {words(together)}."]


def words(content: Mapping[str, Any]) -> str:
    """Options as text.

    Example:
        >>> words({"penalty": "l1", "versions": {"numpy": "2"}})
        'penalty = l1, versions (numpy = 2)'
    """
    return ", ".join(
        f"{key} ({words(value)})" if isinstance(value, Mapping) else f"{key} = {value}"
        for key, value in content.items()
    )


def chosen(candidates: Sequence[Candidate]) -> str:
    """What a method's options were chosen from, each with its validation DSC and ECE."""
    out = []
    for one in candidates:
        text = f"{words(one.options)}: {'failed' if one.val_dsc is None else f'{one.val_dsc:.3f}'}"
        if one.val_ece is not None:
            text += f" (ECE {one.val_ece:.3f})"
        if one.broke_down:
            some = len(one.trainings) > 1
            text += f", {f'{one.broke_down} of {len(one.trainings)} ' if some else ''}broke down"
        out.append(text)
    return "; ".join(out)
