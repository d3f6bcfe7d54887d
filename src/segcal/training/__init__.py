"""Training: from a prepared data set to a checkpoint.

train(...)            train a network; `segcal train` calls it
make_schedule(...)    penalty weights that change over the epochs, for any training loop
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.training.build import build_loss
from segcal.training.callbacks import ErrorDriven, ValidationCallback
from segcal.training.device import close_process_group
from segcal.training.errors import Interrupted, NonFiniteLossError, TrainingError
from segcal.training.loop import train
from segcal.training.schedule import (
    SCHEDULES,
    Constant,
    LinearRamp,
    Multiply,
    Step,
    make_schedule,
    set_penalty_weight,
)

__all__ = [
    "SCHEDULES", "Constant", "ErrorDriven", "Interrupted", "LinearRamp", "Multiply",
    "NonFiniteLossError", "Step", "TrainingError", "ValidationCallback", "build_loss",
    "close_process_group", "make_schedule", "set_penalty_weight", "train",
]  # fmt: skip
