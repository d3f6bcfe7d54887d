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
