"""Training: from a prepared set to a checkpoint, and how a penalty weight changes over the epochs.

train(config, out)    the whole run; `segcal train` is this
make_schedule(...)    penalty weights over the epochs
"""

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from segcal.training.loop import TrainResult, train
    from segcal.training.loss_meter import Interrupted, NonFiniteLossError, TrainingError
    from segcal.training.state import OPTIMIZERS
    from segcal.training.validate import Validator, summarize

# Schedules are for every training loop; Fabric is loaded only for ours.
_IN_MODULE = {
    "OPTIMIZERS": "state",
    "Interrupted": "loss_meter",
    "NonFiniteLossError": "loss_meter",
    "TrainResult": "loop",
    "TrainingError": "loss_meter",
    "Validator": "validate",
    "summarize": "validate",
    "train": "loop",
}

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Constant",
    "Interrupted",
    "LinearRamp",
    "Multiply",
    "NonFiniteLossError",
    "Step",
    "TrainResult",
    "TrainingError",
    "Validator",
    "WeightSchedule",
    "make_schedule",
    "set_penalty_weight",
    "summarize",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _IN_MODULE:
        return getattr(importlib.import_module(f"segcal.training.{_IN_MODULE[name]}"), name)
    raise AttributeError(f"module 'segcal.training' has no attribute {name!r}")
