"""Margin-based label smoothing: by hand and in its limits."""

from typing import Any

import pytest

from helpers.loss_samples import CE, CE_A, CE_B, check_by_hand, check_parameter, check_weighted


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, CE),
        ({"margin": 0.5}, CE + 0.1 * (1.5 + 0.5) / 4),
        ({"margin": 0.5, "class_reduction": "sum"}, CE + 0.1 * (1.5 + 0.5) / 2),
        ({"margin": 1.0, "penalty_weight": 0.2}, CE + 0.2 * (1.0 + 0.0) / 4),
    ],
)
def test_by_hand(options: dict[str, Any], expected: float) -> None:
    check_by_hand("mbls", options, expected)


def test_class_weights_by_hand() -> None:
    check_weighted("mbls", {"ce": (CE_A + 3 * CE_B) / 4})


@pytest.mark.parametrize(
    ("option", "value"), [("margin", 0.2), ("penalty_weight", 0.9), ("class_reduction", "sum")]
)
def test_every_parameter_changes_the_result(option: str, value: Any) -> None:
    check_parameter("mbls", option, value, margin=1.0)
