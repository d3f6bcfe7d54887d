"""Pages of `segcal assure apply` and `segcal assure check`: tables and pictures, no script."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.colors import to_rgb

from segcal import __version__
from segcal.assurance import Assurance, CaseResult, CheckResult, Measure, Plane
from segcal.core.files import write_text
from segcal.report.page import TEMPLATES
from segcal.report.pictures import (
    Bytes,
    class_color,
    data_uri,
    edges,
    picture_size,
    resized,
    window_of,
)
from segcal.report.text import count

_MOST_PICTURES = 200
_SIDE = 320  # pixels of the longer side of a picture


class PlainTable(NamedTuple):
    """Text in rows; the first column is the heading of its row. `marks` are classes of rows."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Sequence[str]


class Bar(NamedTuple):
    """A volume with its interval, in percent of the largest of the cohort."""

    name: str
    color: str
    text: str
    low: float
    middle: float
    high: float


class Card(NamedTuple):
    """A scan: picture, status, volumes."""

    id: str
    result: CaseResult
    dice: str
    picture: str
    bars: Sequence[Bar]


def write_applied_page(out: Path, assurance: Assurance, results: Sequence[CaseResult]) -> Path:
    """Write index.html of `segcal assure apply`: the cohort, and a card per scan."""
    status = {name: sum(r.status == name for r in results) for name in ("accept", "refer")}
    outside = sum(not r.in_scope for r in results)
    patients = len({case.patient for case in assurance.cases})
    facts = [
        count(len(results), "scan"), f"{status['accept']} accepted", f"{status['refer']} referred",
        f"{outside} out of scope", f"{assurance.coverage:.0%} intervals",
        f"fitted on {count(len(assurance.cases), 'scan')} of {count(patients, 'patient')}",
    ]  # fmt: skip
    table = PlainTable(
        "Cohort", "The most doubtful scans first. Volumes in ml.",
        ["scan", "status", "expected Dice", *(s.name for s in assurance.structures), "reason"],
        [
            [r.case, r.status, _dice_text(r), *(_volume_text(s.interval, s.ml)
             for s in r.structures), r.reason]
            for r in results
        ],
        [r.status for r in results],
    )  # fmt: skip
    largest: dict[str, float] = defaultdict(float)
    for result in results:
        for one in result.structures:
            largest[one.name] = max(largest[one.name], one.ml, *(one.interval or (0.0,)))
    cards = [_card(i, r, largest) for i, r in enumerate(results[:_MOST_PICTURES])]
    notes = list(assurance.refused)
    return _write(out, "apply", "Volumes and decisions", facts, notes, [table], cards)


def write_checked_page(out: Path, assurance: Assurance, result: CheckResult) -> Path:
    """Write index.html of `segcal assure check`: promises, and all measures."""
    promises = PlainTable(
        "Promises",
        "A promise is broken if the interval excludes it. All intervals of this table hold "
        "together with 95 %.",
        ["structure", "what", "promised", "measured", "interval", "patients", "verdict"],
        [
            [p.structure, p.what, f"{'≥' if p.at_least else '≤'} {p.promised:g}",
             f"{p.measured:.3f}", f"{p.low:.3f} to {p.high:.3f}", str(p.patients),
             "broken" if p.broken else "holds"]
            for p in result.promises
        ],
        ["refer" if p.broken else "accept" for p in result.promises],
    )  # fmt: skip
    groups: dict[str, list[Measure]] = defaultdict(list)
    for one in result.measures:
        groups[one.structure].append(one)
    tables = [promises]
    for structure, measures in groups.items():
        title = "All structures" if structure == "all" else structure
        rows = [
            [m.what, m.method, f"{m.value:.4g}", f"{m.low:.4g} to {m.high:.4g}"] for m in measures
        ]
        head = ["measure", "method", "value", "95 % interval"]
        tables.append(PlainTable(title, "", head, rows, [""] * len(rows)))
    facts = [
        count(result.cases, "scan"), count(result.patients, "patient"),
        f"{len(result.broken)} of {count(len(result.promises), 'promise')} broken",
    ]  # fmt: skip
    return _write(out, "check", "Do the promises hold?", facts, list(assurance.refused), tables, [])


def _write(
    out: Path, kind: str, title: str, facts: Sequence[str], notes: Sequence[str],
    tables: Sequence[PlainTable], cards: Sequence[Card],
) -> Path:  # fmt: skip
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    css = "".join((TEMPLATES / f"{n}.css").read_text("utf-8") for n in ("report", "assurance"))
    page = out / "index.html"
    write_text(
        page,
        environment.get_template("assurance.html").render(
            kind=kind, title=title, facts=" · ".join(facts), notes=notes, tables=tables,
            cards=cards, links={card.result.case: card.id for card in cards},
            version=__version__, css=Markup(css),
        ),
    )  # fmt: skip
    return page


def _dice_text(result: CaseResult) -> str:
    mean, low, high = result.dice
    if np.isnan(mean):
        return "–"
    return f"{mean:.3f}" if np.isnan(low) else f"{mean:.3f} ({low:.2f} to {high:.2f})"


def _volume_text(interval: tuple[float, float, float] | None, ml: float) -> str:
    if interval is None:
        return _digits(ml)
    center, low, high = map(_digits, interval)
    return f"{center} ({low} to {high})"


def _digits(value: float) -> str:
    """Three digits or more."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _card(number: int, result: CaseResult, largest: dict[str, float]) -> Card:
    bars = []
    for label, one in enumerate(result.structures, start=1):
        center, low, high = one.interval or (one.ml, one.ml, one.ml)
        scale = 100 / max(largest[one.name], 1e-9)
        text = _volume_text(one.interval, one.ml) + " ml"
        bars.append(
            Bar(one.name, class_color(label), text, scale * low, scale * center, scale * high)
        )
    picture = "" if result.plane is None else data_uri(_picture(result.plane))
    return Card(f"scan-{number}", result, _dice_text(result), picture, bars)


def _picture(plane: Plane) -> Bytes:
    """Best mask filled, outer mask as a line in the color of its structure, inner mask white."""
    window = window_of((plane.best > 0) | plane.outer.any(0))
    size = picture_size(plane.image[window], plane.spacing_mm, _SIDE)
    gray = resized(plane.image[window], size, smooth=True)
    out = np.repeat(gray[..., None].astype(np.float64), 3, axis=2)
    best = resized(plane.best[window], size)
    for label, (inner, outer) in enumerate(zip(plane.inner, plane.outer, strict=True), start=1):
        rgb = 255 * np.array(to_rgb(class_color(label)))
        out[best == label] = 0.65 * out[best == label] + 0.35 * rgb
        out[edges(resized(outer[window], size))] = rgb
        out[edges(resized(inner[window], size))] = 255
    return out.astype(np.uint8)
