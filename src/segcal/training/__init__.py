"""Training: from a prepared data set to a checkpoint.

train(...)            train a network; `segcal train` calls it
make_schedule(...)    penalty weights that change over the epochs, for any training loop
"""

from segcal.core.checks import require_app

require_app(__name__)

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
    from segcal.training.build import build_loss
    from segcal.training.errors import Interrupted, NonFiniteLossError, TrainingError
    from segcal.training.loop import TrainResult, train

__all__ = [
    "SCHEDULES",
    "Constant",
    "Interrupted",
    "LinearRamp",
    "Multiply",
    "NonFiniteLossError",
    "Step",
    "TrainResult",
    "TrainingError",
    "WeightSchedule",
    "build_loss",
    "make_schedule",
    "set_penalty_weight",
    "train",
]

# Schedules are useful without Lightning Fabric, which these need.
_LAZY = {
    "build": ("build_loss",),
    "errors": ("Interrupted", "NonFiniteLossError", "TrainingError"),
    "loop": ("TrainResult", "train"),
}
__getattr__, __dir__ = lazy_exports(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _LAZY.items() for name in names},
    eager=__all__,
)
