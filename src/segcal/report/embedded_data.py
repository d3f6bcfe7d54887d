"""The data that the page's script draws from: compact JSON, safe inside a script element."""

import json
import math
from typing import Any

import numpy as np
from markupsafe import Markup

from segcal.report.context import Context
from segcal.report.curves import FEW_VOXELS, Curve, Floats

# Limit of numbers for the bins of single cases, about 4 bytes each.
MOST_NUMBERS = 300_000


def page_data(context: Context) -> dict[str, Any]:
    """Methods, datasets, the values of each case, and reliability curves, pooled and per case.

    If the bins of single cases would make the page too large, only the study's region has them,
    and if need be only some cases, evenly selected; `thinned` is true then.
    """
    study, bins = context.study, context.bins.values()
    total = sum(3 * sums[0].size for b in bins for sums in b.regions.values())
    only = context.region if total > MOST_NUMBERS else None
    if only:
        total = sum(3 * b.regions[only][0].size for b in bins if only in b.regions)
    step = max(1, math.ceil(total / MOST_NUMBERS))
    return {
        "methods": [
            {
                "name": method,
                "title": context.title(method),
                "color": context.colors[method],
                "marker": context.markers[method],
            }
            for method in study.methods
        ],
        "regions": list(study.regions),
        "region": context.region,
        "few": FEW_VOXELS,
        "thinned": only is not None,
        "datasets": [_dataset(context, name, only, step) for name in study.datasets],
    }


def _dataset(context: Context, name: str, only: str | None, step: int) -> dict[str, Any]:
    study = context.study
    dsc = context.aggregates.cases(name, "dsc")
    cases = [str(case) for case in dsc.index]
    ece = {region: context.aggregates.cases(name, "ece", region) for region in study.regions}
    out: dict[str, Any] = {
        "name": name,
        "title": study.datasets[name].title,
        "cases": cases,
        "dsc": {m: _rounded(dsc[m].to_numpy()) for m in dsc.columns},
        "ece": {
            region: {m: _rounded(table[m].reindex(dsc.index).to_numpy()) for m in table.columns}
            for region, table in ece.items()
        },
        "pooled": {},
        "single": {},
    }
    for method in study.methods:
        found = context.bins.get((name, method))
        if found is None:
            continue
        index = {case: i for i, case in enumerate(found.cases)}
        for region, sums in found.regions.items():
            curve = context.curve(name, method, region)
            assert curve is not None
            out["pooled"].setdefault(region, {})[method] = _curve(curve)
            if only in (None, region):
                out["single"].setdefault(region, {})[method] = [
                    _sums(sums[:, index[case]]) if case in index and i % step == 0 else 0
                    for i, case in enumerate(cases)
                ]
    return out


def _rounded(values: Floats, digits: int = 4) -> list[float | None]:
    return [None if math.isnan(v) else round(float(v), digits) for v in values]


def _curve(curve: Curve) -> dict[str, Any]:
    """Probabilities in ten-thousandths, which are short in JSON."""
    columns = {"c": curve.confidence, "a": curve.accuracy, "l": curve.low, "h": curve.high}
    return {
        "n": [int(v) for v in curve.count],
        **{
            key: [None if math.isnan(v) else round(1e4 * float(v)) for v in values]
            for key, values in columns.items()
        },
    }


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
