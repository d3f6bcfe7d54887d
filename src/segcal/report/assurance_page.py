"""Pages of `segcal assure apply` and `segcal assure check`: tables and pictures, no script."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

from segcal.assurance import INTERVAL_TITLES, Assurance, CaseResult, CheckResult, Measure, Plane
from segcal.core.arrays import window_of
from segcal.core.files import write_text
from segcal.report.page import fill_template
from segcal.report.pictures import Bytes, class_color, data_uri, edges, picture_size, resized
from segcal.report.text import count

_MOST_PICTURES = 200
_KINDS: dict[str, str] = {
    **{str(kind): title for kind, title in INTERVAL_TITLES.items()},
    "independent": "independent voxels, not fitted",
    "nested": "nested outlines, not fitted",
}
_INTERVAL_COLUMNS = ("coverage", "width ml", "CRPS ml")
_MEASURES = (
    "Coverage by difficulty: thirds of the scans by the width that the one-factor model expects. "
    "PIT: the level of the true volume in its distribution; if the model is right, the mean is "
    "0.5, and the spread, relative to a uniform distribution, is 1. Bias: expected minus true Dice."
)
_NO_RULE = (
    " No rule: the fit cannot limit how often an accepted scan fails, so no scan is accepted "
    "without review."
)
_SIDE = 320  # pixels of the longer side of a picture


def write_applied_page(out: Path, assurance: Assurance, results: Sequence[CaseResult]) -> Path:
    """Write index.html of `segcal assure apply`: the cohort, and a card per scan."""
    status = [r.status for r in results]
    patients = len({case.patient for case in assurance.cases})
    facts = [
        count(len(results), "scan"),
        *_decisions(assurance, status),
        f"{sum(not r.in_scope for r in results)} unlike the scans of the fit",
        f"{100 * assurance.coverage:g} % intervals",
        f"fitted on {count(len(assurance.cases), 'scan')} of {count(patients, 'patient')}",
    ]  # fmt: skip
    table = {
        "title": "Cohort", "note": "The most doubtful scans first. Volumes are medians with their "
        "intervals. Expected Dice is that of the argmax masks, mean over the structures that "
        "probably exist."
        + _NO_RULE * (assurance.referral is None),
        "head": ["scan", "status", "expected Dice",
                 *(f"{s.name}, ml" for s in assurance.structures), "reason"],
        "rows": [
            [r.case, r.status, _dice_text(r),
             *(_volume_text(s.interval, s.ml) for s in r.structures), r.reason]
            for r in results
        ],
    }  # fmt: skip
    largest: dict[str, float] = defaultdict(float)
    for result in results:
        for one in result.structures:
            top = np.nanmax([one.ml, *one.interval])
            largest[one.name] = max(largest[one.name], float(top))
    cards = [_card(f"scan-{i}", r, largest) for i, r in enumerate(results[:_MOST_PICTURES])]
    return _write(out, "apply", "Volumes and decisions", facts, assurance, [table], cards)


def _decisions(assurance: Assurance, status: Sequence[str]) -> list[str]:
    if assurance.referral is None:
        return ["no rule for referral: review every scan"]
    return [f"{status.count('accept')} accepted", f"{status.count('refer')} referred"]


def write_checked_page(out: Path, assurance: Assurance, result: CheckResult) -> Path:
    """Write index.html of `segcal assure check`: promises, and all measures."""
    tables: list[dict[str, Any]] = [{
        "title": "Promises",
        "note": "Broken: the interval excludes the promise. Consistent: it does not, which with "
        "few patients shows little. All intervals of this table hold together with 95 %.",
        "head": ["structure", "what", "promised", "measured", "interval", "patients", "verdict"],
        "rows": [
            [p.structure, p.what, f"{'≥' if p.at_least else '≤'} {p.promised:g}",
             f"{p.measured:.3f}", f"{p.low:.3f} to {p.high:.3f}", str(p.patients),
             "broken" if p.broken else "consistent"]
            for p in result.promises
        ],
    }]  # fmt: skip
    used = {fit.name: fit.method for fit in assurance.structures}
    for structure in dict.fromkeys(m.structure for m in result.measures):
        own = [m for m in result.measures if m.structure == structure]
        title = "All structures" if structure == "all" else structure
        if structure in used:
            tables.append(_interval_table(title, own, used[structure]))
            title += ": other measures"
        tables.append({
            "title": title, "note": "" if structure == "all" else _MEASURES,
            "head": ["measure", "method", "value", "95 % interval"],
            "rows": [
                [m.what, _KINDS.get(m.method, m.method), _number(m.value), _span(m.low, m.high)]
                for m in own
                if m.what not in _INTERVAL_COLUMNS
            ],
        })  # fmt: skip
    facts = [
        count(result.cases, "scan"), count(result.patients, "patient"), result.conclusion,
    ]  # fmt: skip
    return _write(out, "check", "Do the promises hold?", facts, assurance, tables, [])


def _interval_table(title: str, measures: Sequence[Measure], used: str) -> dict[str, Any]:
    """A row per kind of volume interval; the one that `apply` uses is marked."""
    found = {(m.method, m.what): m for m in measures}
    rows = []
    for kind, name in _KINDS.items():
        cells = (found.get((kind, what)) for what in _INTERVAL_COLUMNS)
        texts = [f"{_number(m.value)} ({_span(m.low, m.high)})" if m else "–" for m in cells]
        rows.append([f"{name} (used)" if kind == used else name, *texts])
    note = (
        "Values with 95 % intervals. CRPS: error of the predicted distribution of volumes; smaller "
        "is better."
    )
    return {
        "title": f"{title}: volume intervals", "note": note,
        "head": ["kind of interval", *_INTERVAL_COLUMNS], "rows": rows,
    }  # fmt: skip


def _write(
    out: Path, kind: str, title: str, facts: Sequence[str], assurance: Assurance,
    tables: Sequence[Mapping[str, Any]], cards: Sequence[Mapping[str, Any]],
) -> Path:  # fmt: skip
    text = fill_template(
        "assurance.html", ["report.css", "assurance.css"], kind=kind, title=title,
        facts=" · ".join(facts), notes=assurance.refused, tables=tables, cards=cards,
        links={card["result"].case: card["id"] for card in cards},
    )  # fmt: skip
    write_text(out / "index.html", text)
    return out / "index.html"


def _number(value: float) -> str:
    """Three digits or more."""
    if np.isnan(value):
        return "–"
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _span(low: float, high: float) -> str:
    return "–" if np.isnan(low) else f"{_number(low)} to {_number(high)}"


def _dice_text(result: CaseResult) -> str:
    mean, low, high = result.dice
    if not any(one.ml for one in result.structures):
        return "no mask"
    return _number(mean) if np.isnan(low) else f"{mean:.3f} ({low:.2f} to {high:.2f})"


def _volume_text(interval: tuple[float, float, float], ml: float) -> str:
    center, low, high = interval
    return _number(ml) if np.isnan(low) else f"{_number(center)} ({_span(low, high)})"


def _card(name: str, result: CaseResult, largest: Mapping[str, float]) -> dict[str, Any]:
    bars = []
    for label, one in enumerate(result.structures, start=1):
        values = [one.ml] * 3 if np.isnan(one.interval.low) else one.interval
        middle, low, high = (100 * v / max(largest[one.name], 1e-9) for v in values)
        bars.append({
            "name": one.name, "color": class_color(label), "low": low, "middle": middle,
            "high": high, "text": _volume_text(one.interval, one.ml) + " ml",
        })  # fmt: skip
    picture = "" if result.plane is None else data_uri(_picture(result.plane))
    return {"id": name, "result": result, "dice": _dice_text(result), "picture": picture,
            "bars": bars}  # fmt: skip


def _picture(plane: Plane) -> Bytes:
    """Best mask filled, outer mask as a line in the color of its structure, inner mask white."""
    shown = plane.best if plane.best.any() else plane.outer.any(0)
    window = window_of(np.asarray(shown > 0))
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
