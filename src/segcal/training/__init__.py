"""Training: so far, how a penalty weight changes over the epochs."""

from segcal.training.schedule import (
    SCHEDULES,
    Constant,
    LinearRamp,
    Multiply,
    Step,
    WeightSchedule,
    make_schedule,
    set_penalty_weight,
)

__all__ = [
    "SCHEDULES",
    "Constant",
    "LinearRamp",
    "Multiply",
    "Step",
    "WeightSchedule",
    "make_schedule",
    "set_penalty_weight",
]
