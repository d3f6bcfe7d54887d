"""Training: from a prepared data set to a checkpoint.

train(...)            train a network; `segcal train` calls it
complete_config(...)  the settings of a run, with those that its recipe chooses
make_schedule(...)    penalty weights that change over the epochs, for any training loop
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.training.build import build_loss
from segcal.training.callbacks import ErrorDriven, ValidationCallback
from segcal.training.device import close_process_group, is_first_process
from segcal.training.errors import Interrupted, NonFiniteLossError, TrainingError
from segcal.training.loop import complete_config, train
from segcal.training.recipes import RECIPES, Recipe
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
    "RECIPES", "SCHEDULES", "Constant", "ErrorDriven", "Interrupted", "LinearRamp", "Multiply",
    "NonFiniteLossError", "Recipe", "Step", "TrainingError", "ValidationCallback", "build_loss",
    "close_process_group", "complete_config", "is_first_process", "make_schedule",
    "set_penalty_weight", "train",
]  # fmt: skip
