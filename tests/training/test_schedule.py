"""Penalty weights over the epochs."""

from typing import Any

import pytest

from segcal.losses import CrossEntropyLoss, DiceLoss, ECPLoss, NACLLoss, WeightedSum
from segcal.training import SCHEDULES, make_schedule, set_penalty_weight


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", {"value": 0.1}, {0: 0.1, 99: 0.1}),
        ("linear", {"start": 0.0, "end": 0.2, "epochs": 10}, {0: 0.0, 5: 0.1, 10: 0.2, 50: 0.2}),
        ("linear", {"start": 0.2, "end": 0.0, "epochs": 4}, {0: 0.2, 1: 0.15, 4: 0.0}),
        ("step", {"start": 0.0, "changes": {10: 0.1, 5: 0.3}}, {4: 0.0, 5: 0.3, 9: 0.3, 10: 0.1}),
        ("multiply", {"start": 0.1, "factor": 2.0, "every": 3, "cap": 0.5},
         {0: 0.1, 2: 0.1, 3: 0.2, 6: 0.4, 9: 0.5, 10**5: 0.5}),
        ("multiply", {"start": 0.8, "factor": 0.5}, {0: 0.8, 1: 0.4, 2: 0.2}),
    ],
)  # fmt: skip
def test_weights_by_hand(name: str, options: dict[str, Any], expected: dict[int, float]) -> None:
    schedule = make_schedule(name, **options)
    assert {epoch: schedule(epoch) for epoch in expected} == pytest.approx(expected)


def test_the_weight_is_set_inside_a_sum() -> None:
    nacl, ecp = NACLLoss(), ECPLoss()
    set_penalty_weight(WeightedSum(nacl, WeightedSum(ecp, DiceLoss())), 0.3)
    assert nacl.penalty_weight == ecp.penalty_weight == 0.3
    with pytest.raises(ValueError, match="CrossEntropyLoss has none"):
        set_penalty_weight(CrossEntropyLoss(), 0.3)
    with pytest.raises(ValueError, match="`weight`"):
        set_penalty_weight(nacl, -1.0)
    assert nacl.penalty_weight == 0.3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine", {}, "`schedule.name` .*'constant', 'linear', 'step', 'multiply'"),
        ("linear", {"strt": 0.0, "end": 0.1, "epochs": 1}, "'strt'.*'start'"),
        ("error_driven", {"rte": 1.0}, "'rte'.*'rate'"),
        ("constant", {"value": -1.0}, "`value`"),
        ("linear", {"start": -1.0, "end": 0.1, "epochs": 1}, "`start`"),
        ("linear", {"start": 0.0, "end": float("nan"), "epochs": 1}, "`end`"),
        ("linear", {"start": 0.0, "end": 0.1, "epochs": 0}, "`epochs`"),
        ("step", {"start": 0.0, "changes": {-1: 0.1}}, "`changes`"),
        ("step", {"start": 0.0, "changes": {3: -0.1}}, r"`changes\[3\]`"),
        ("multiply", {"start": 0.1, "factor": 0.0}, "`factor`"),
        ("multiply", {"start": 0.1, "factor": 2.0, "every": 0}, "`every`"),
        ("multiply", {"start": 2.0, "factor": 0.5}, "`start` .* at most 1.0"),
        ("multiply", {"start": 0.1, "factor": 2.0, "cap": -1.0}, "`cap`"),
    ],
)
def test_invalid_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_schedule(name, **options)


def test_all_schedules_have_a_name() -> None:
    assert set(SCHEDULES) == {"constant", "linear", "step", "multiply", "error_driven"}
