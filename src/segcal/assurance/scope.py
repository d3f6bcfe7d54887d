"""What the scans of a fit look like, so that others can be recognized."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from segcal.assurance.model import Scope, deviations, group_of
from segcal.assurance.summary import CaseSummary

# A deviation of fewer scales is never out of scope; and the smallest scale of a statistic.
_SCOPE_LIMIT, _SMALLEST_SCALE = 3.5, 0.01
# Images whose standard deviations differ by a larger factor have no common unit (MR).
_COMMON_UNIT = 5.0


def fit_scope(cases: Sequence[CaseSummary]) -> Scope:
    """Medians and scales of the statistics that at least half of the scans have.

    Intensities without a common unit say nothing and are left out.
    """
    center, scale = {}, {}
    known = {
        key: np.array([case.features[key] for case in cases if key in case.features])
        for key in sorted({key for case in cases for key in case.features})
    }
    spreads = [
        np.subtract(*np.quantile(values, [0.9, 0.1]))
        for key, values in known.items()
        if "asinh deviation" in key
    ]
    for key, values in known.items():
        if group_of(key) == "intensity" and max(spreads) > np.log(_COMMON_UNIT):
            continue
        if 2 * len(values) >= len(cases):
            center[key] = float(np.median(values))
            spread = 1.4826 * float(np.median(np.abs(values - center[key])))
            scale[key] = max(spread, _SMALLEST_SCALE)
    limit: dict[str, float] = defaultdict(lambda: _SCOPE_LIMIT)
    for case in cases:
        for key, value in deviations(case.features, center, scale).items():
            limit[group_of(key)] = max(limit[group_of(key)], value)
    return Scope(center=center, scale=scale, limit=limit)
