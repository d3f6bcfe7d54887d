"""Training: from a prepared data set to a checkpoint.

train(...)            train a network; `segcal train` calls it
make_schedule(...)    penalty weights that change over the epochs, for any training loop
"""

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports
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
    from segcal.training.build import OPTIMIZERS, build_loss
    from segcal.training.errors import Interrupted, NonFiniteLossError, TrainingError
    from segcal.training.loop import TrainResult, train
    from segcal.training.validate import Validator, summarize

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
    "build_loss",
    "make_schedule",
    "set_penalty_weight",
    "summarize",
    "train",
]

# Schedules are useful without Lightning Fabric, which the other names need.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "OPTIMIZERS": "segcal.training.build",
        "build_loss": "segcal.training.build",
        "Interrupted": "segcal.training.errors",
        "NonFiniteLossError": "segcal.training.errors",
        "TrainingError": "segcal.training.errors",
        "TrainResult": "segcal.training.loop",
        "train": "segcal.training.loop",
        "Validator": "segcal.training.validate",
        "summarize": "segcal.training.validate",
    },
    eager=__all__,
)
