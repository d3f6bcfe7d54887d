"""Disagreement of ensembles, by hand and at its limits."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from segcal.metrics import (
    dsc,
    entropy,
    evaluate_case,
    mean_pairwise_dice,
    mutual_information,
    pair_tables,
    probability_variance,
)


def test_maps_by_hand() -> None:
    # Three members, two classes, two voxels; the members agree in the second voxel.
    foreground = np.array([[0.2, 0.5], [0.5, 0.5], [0.8, 0.5]])
    members = np.stack([1 - foreground, foreground], axis=1)
    # mean 0.5, squared deviations 0.09, 0 and 0.09, the same for both classes
    np.testing.assert_allclose(probability_variance(members), [0.06, 0])
    each = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    expected = math.log(2) - (2 * each + math.log(2)) / 3
    np.testing.assert_allclose(mutual_information(members), [expected, 0], atol=1e-12)
    np.testing.assert_allclose(mutual_information(torch.from_numpy(members)), [expected, 0])


def test_limits_of_the_mutual_information() -> None:
    certain = np.eye(3)[:, :, None]  # each member is sure of another class
    np.testing.assert_allclose(mutual_information(certain), math.log(3))
    rng = np.random.default_rng(0)
    members = rng.dirichlet(np.ones(4), size=(5, 7)).transpose(0, 2, 1)
    found = mutual_information(members)
    assert ((found > 0) & (found < math.log(4))).all()
    np.testing.assert_allclose(entropy(members[0]), scipy_entropy(members[0]))
    np.testing.assert_array_equal(mutual_information(members[:1]), 0)
    np.testing.assert_array_equal(probability_variance(members[:1]), 0)


def test_pairwise_dice_by_hand() -> None:
    maps = np.array([[1, 1, 0, 2], [1, 0, 0, 2], [0, 0, 0, 0]])
    tables = pair_tables(maps, 4)
    # class 1: 2/3, 0 and 0; class 2: 1, 0 and 0; class 3 is empty everywhere
    found = [mean_pairwise_dice(tables, (k,)) for k in (1, 2, 3)]
    np.testing.assert_allclose(found, [2 / 9, 1 / 3, 1])
    # classes 1 and 2 together: 2 · 2/5, 0 and 0
    assert mean_pairwise_dice(tables, (1, 2)) == pytest.approx(0.8 / 3)
    assert math.isnan(mean_pairwise_dice(pair_tables(maps[:1], 4), (1,)))
    two = dsc(maps[0], maps[1], 4)
    assert {str(k): mean_pairwise_dice(pair_tables(maps[:2], 4), (k,)) for k in (1, 2, 3)} == two


def test_rows_of_an_ensemble() -> None:
    maps = np.array([[1, 1, 0, 0], [1, 0, 0, 1]])
    probs = np.full((2, 4), 0.5)
    target = np.array([1, 0, 0, -100])

    def rows(**options: object) -> dict[str, float]:
        result = evaluate_case(probs, target, 1.0, case="a", **options)  # type: ignore[arg-type]
        return {row.label: row.value for row in result.rows if row.metric == "pairwise_dice"}

    assert rows() == {}
    # The last voxel is ignored: 2 · 1 / (2 + 1), not 2 · 1 / (2 + 2).
    assert rows(members=maps) == {"1": pytest.approx(2 / 3)}
