"""The choice between calibrators from the NLL of held-out cases."""

import numpy as np
import pytest

from segcal.evaluation.posthoc_choice import choose


@pytest.mark.filterwarnings("error")
def test_a_case_without_a_boundary_counts_by_all_its_voxels() -> None:
    plain = np.array([[0.2, 0.4], [0.4, np.nan]])  # (cases, regions all and predicted_boundary)
    found = choose({"none": plain, "temperature": plain / 2, "distance": plain * 0.75}, None)
    assert found.method == "temperature"
    assert found.nll["none"] == pytest.approx((0.3, 0.4))
    assert found.changes["temperature"].difference == pytest.approx(-(5 / 6 + 4 / 3) / 4)


@pytest.mark.filterwarnings("error")
def test_without_any_boundary_all_voxels_decide() -> None:
    plain = np.array([[0.2, np.nan], [0.4, np.nan]])
    found = choose({"none": plain, "temperature": plain * 2, "distance": plain / 2}, None)
    assert found.method == "distance"
    assert np.isnan(found.nll["distance"][1])


@pytest.mark.parametrize(("gains", "unsure"), [([0.1, 0.11, 0.12], False), ([0.5, 0.1, 0], True)])
def test_the_reason_agrees_with_the_interval_in_the_table(gains: list[float], unsure: bool) -> None:
    """Also with fewer cases than a verdict needs."""
    plain = np.full((3, 2), 0.5)
    found = choose({"none": plain, "temperature": plain - np.array(gains)[:, None]}, None)
    change = found.changes["temperature"]
    assert change.direction == "too few"
    assert (change.low <= 0 <= change.high) == unsure
    assert ("interval" in list(found.lines())[-1]) == unsure
