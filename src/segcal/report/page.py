"""The page: one template that shows the blocks of all sections and escapes all text.

Its script draws from embedded data: compact JSON, safe inside a script element.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from segcal import __version__
from segcal.report.blocks import BrowserData, Section
from segcal.report.context import MOST_NETWORKS, Context
from segcal.report.curves import FEW_VOXELS, Floats
from segcal.report.pictures import class_color
from segcal.report.plots.style import DOUBT_COLOR, ERROR_COLORS
from segcal.report.text import count

TEMPLATES = Path(__file__).parent / "templates"
# Limit of numbers for the bins of single cases, about 4 bytes each.
MOST_NUMBERS = 300_000


def render(context: Context, sections: Sequence[Section], figures: Mapping[str, Markup]) -> str:
    """The page as one text; `figures` has the SVG element of each figure by name."""
    cases = [
        case
        for section in sections for block in section.walk() if isinstance(block, BrowserData)
        for case in block.cases
    ]  # fmt: skip
    pictured = {(case["dataset"], case["name"]) for case in cases}
    data = {**page_data(context), "browser": cases}
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return fill_template(
        "report.html", ["report.css"], context=context, sections=sections, figures=figures,
        pictured=pictured, facts=_facts(context), data=script_json(data), js=Markup(script),
        script_hash=f"sha256-{digest}",
    )  # fmt: skip


def fill_template(name: str, styles: Sequence[str], **values: Any) -> str:
    """A page from a template, the content of style sheets, and values, which are escaped."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    css = "".join((TEMPLATES / style).read_text(encoding="utf-8") for style in styles)
    return environment.get_template(name).render(css=Markup(css), version=__version__, **values)


def _facts(context: Context) -> str:
    """Methods, datasets, seeds and region in one line."""
    study, aggregates = context.study, context.aggregates
    sets = [f"{d.title} ({count(aggregates.case_count(d.name), 'case')})" for d in context.datasets]
    out = [count(len(context.listed), "method"), ", ".join(sets)]
    if calibrated := len(study.methods) - len(context.listed):
        out[0] += f" and {calibrated} calibrated versions"
    if aggregates.seeds > 1:
        out.append(f"{aggregates.seeds} seeds")
    if study.info.kind != "audit":
        out.append(f"split {study.info.split}")
    if study.regions:
        out.append(f"calibration in region {context.region} unless stated otherwise")
        out.append(f"measured on the {study.info.measured_grid} grid")
    return " · ".join(out)


def page_data(context: Context) -> dict[str, Any]:
    """Methods, datasets, the values of each case, and reliability curves, pooled and per case.

    If the bins of single cases would make the page too large, only the study's region has them,
    and if need be only some cases, evenly selected; `thinned` is true then.
    """
    study = context.study
    sizes = {
        region: sum(b.regions[region].size for b in context.bins.values() if region in b.regions)
        for region in study.regions
    }
    thinned = sum(sizes.values()) > MOST_NUMBERS
    single = [context.region] if thinned else list(study.regions)
    step = max(1, math.ceil(sum(sizes.get(region, 0) for region in single) / MOST_NUMBERS))
    return {
        "methods": [
            {"name": m, "title": context.title(m), "color": context.colors[m],
             "marker": context.markers[m]}
            for m in study.methods
        ],
        "regions": list(study.regions),
        "region": context.region,
        "few": FEW_VOXELS,
        "networks": MOST_NETWORKS,
        "seeds": context.aggregates.seeds,
        "thinned": thinned,
        "colors": {"doubt": DOUBT_COLOR, **ERROR_COLORS},
        "datasets": [_dataset(context, name, single, step) for name in study.datasets],
    }  # fmt: skip


def _dataset(context: Context, name: str, single: list[str], step: int) -> dict[str, Any]:
    study, dsc = context.study, context.aggregates.cases(name, "dsc")
    out: dict[str, Any] = {
        "name": name,
        "title": study.datasets[name].title,
        "classes": [
            [label, class_color(k)] for k, label in enumerate(study.datasets[name].labels) if k
        ],
        "cases": [str(case) for case in dsc.index],
        "dsc": {m: _rounded(dsc[m].to_numpy()) for m in dsc.columns},
        "ece": {},
        "pooled": {},
        "single": {},
    }
    for region in study.regions:
        ece = context.aggregates.cases(name, "ece", region).reindex(dsc.index)
        out["ece"][region] = {m: _rounded(ece[m].to_numpy()) for m in ece.columns}
        for method in study.methods:
            if (name, method, region) not in context.curves:
                continue
            curve, bins = context.curves[name, method, region], context.bins[name, method]
            # Probabilities in ten-thousandths, which are short in JSON.
            columns = {"c": curve.confidence, "a": curve.accuracy, "l": curve.low, "h": curve.high}
            out["pooled"].setdefault(region, {})[method] = {
                "n": [int(v) for v in curve.count],
                **{key: _rounded(1e4 * values, None) for key, values in columns.items()},
            }
            if region in single:
                index = {case: i for i, case in enumerate(bins.cases)}
                sums = bins.regions[region]
                out["single"].setdefault(region, {})[method] = [
                    _sums(sums[:, index[case]]) if case in index and i % step == 0 else 0
                    for i, case in enumerate(out["cases"])
                ]
    return out


def _rounded(values: Floats, digits: int | None = 4) -> list[float | None]:
    return [None if math.isnan(v) else round(float(v), digits) for v in values]


def _sums(sums: Floats) -> list[int]:
    """Bin, count, confidence and accuracy of each bin that has voxels, one after the other."""
    count, confidence, accuracy = sums
    out: list[int] = []
    for b in np.flatnonzero(count):
        n = count[b]
        out += [int(b), int(n), round(1e4 * confidence[b] / n), round(1e4 * accuracy[b] / n)]
    return out


def script_json(data: Any) -> Markup:
    r"""JSON that cannot end the script element it is in.

    Example:
        >>> print(script_json(["</script>"]))
        ["\u003c/script\u003e"]
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
