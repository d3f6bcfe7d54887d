"""What the page draws by itself: numbers as compact JSON, safe inside a script element."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from segcal.report.numbers import Numbers
from segcal.report.reliability import FEW_VOXELS, CaseBins, Curve, Floats
from segcal.report.style import colours, markers

# Bins of single cases that the page may hold: about 4 bytes each.
MOST_NUMBERS = 300_000


def page_data(numbers: Numbers, bins: Mapping[tuple[str, str], CaseBins]) -> dict[str, Any]:
    """Methods, datasets, the values of each case, and reliability pooled and per case.

    Where single cases would make the page heavy, only the study's region has them, and then only
    some cases, evenly chosen; `thinned` says so.
    """
    study = numbers.study
    names = list(study.methods)
    tone, shape = colours(names), markers(names)
    total = sum(3 * r.shape[1] * r.shape[2] for b in bins.values() for r in b.regions.values())
    keep = None if total <= MOST_NUMBERS else study.region
    if keep:
        total = sum(3 * b.regions[keep][0].size for b in bins.values() if keep in b.regions)
    step = max(1, math.ceil(total / MOST_NUMBERS))
    return {
        "methods": [
            {"name": m, "title": study.methods[m].title, "colour": tone[m], "marker": shape[m]}
            for m in names
        ],
        "regions": list(study.regions),
        "region": study.region,
        "few": FEW_VOXELS,
        "thinned": keep is not None,
        "datasets": [_dataset(numbers, bins, name, keep, step) for name in study.datasets],
    }


def _dataset(
    numbers: Numbers,
    bins: Mapping[tuple[str, str], CaseBins],
    name: str,
    keep: str | None,
    step: int,
) -> dict[str, Any]:
    study = numbers.study
    dsc = numbers.cases(name, "dsc")
    cases = [str(case) for case in dsc.index]
    ece = {region: numbers.cases(name, "ece", region) for region in study.regions}
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
        found = bins.get((name, method))
        for region, sums in (found.regions if found else {}).items():
            curve = found.pooled(region) if found else None
            if found is None or curve is None:
                continue
            out["pooled"].setdefault(region, {})[method] = _curve(curve)
            if keep in (None, region):
                at = {case: i for i, case in enumerate(found.cases)}
                out["single"].setdefault(region, {})[method] = [
                    _sums(sums[:, at[case]]) if case in at and i % step == 0 else 0
                    for i, case in enumerate(cases)
                ]
    return out


def _rounded(values: Floats, digits: int = 4) -> list[float | None]:
    return [None if math.isnan(v) else round(float(v), digits) for v in values]


def _curve(curve: Curve) -> dict[str, Any]:
    """Probabilities in ten-thousandths: short in JSON."""
    return {
        "n": [int(v) for v in curve.count],
        **{
            key: [None if math.isnan(v) else round(1e4 * float(v)) for v in values]
            for key, values in (
                ("c", curve.confidence), ("a", curve.accuracy), ("l", curve.low), ("h", curve.high),
            )
        },
    }  # fmt: skip


def _sums(sums: Floats) -> list[int]:
    """[bin, count, confidence, accuracy] of each bin that has voxels, one after the other."""
    count, confidence, accuracy = sums
    out: list[int] = []
    for b in np.flatnonzero(count):
        n = count[b]
        out += [int(b), int(n), round(1e4 * confidence[b] / n), round(1e4 * accuracy[b] / n)]
    return out


def script_json(data: Any) -> Markup:
    r"""JSON that nothing in it can end the script element of.

    Example:
        >>> print(script_json(["</script>"]))
        ["\u003c/script\u003e"]
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
