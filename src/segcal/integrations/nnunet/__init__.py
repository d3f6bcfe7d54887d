"""segcal in nnU-Net v2: trainers with calibrated losses, and calibration of its softmax.

trainer_folder()        the folder in which nnU-Net finds the trainers
calibrate_results       fit a calibrator on the cross-validation, `segcal nnunet calibrate`
apply_to_predictions    apply it to predictions, `segcal nnunet apply`

Only `segcal.integrations.nnunet.trainers` needs nnU-Net to be installed.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports

if TYPE_CHECKING:
    from segcal.integrations.nnunet.calibrate import apply_to_predictions, calibrate_results

# Trainer class -> its loss in `segcal.losses.LOSSES`, and which Dice is added.
TRAINERS = {
    "nnUNetTrainerNACL": "nacl + nnU-Net's Dice",
    "nnUNetTrainerSVLS": "svls + nnU-Net's Dice",
    "nnUNetTrainerMbLS": "mbls + nnU-Net's Dice",
    "nnUNetTrainerLS": "ls + nnU-Net's Dice",
    "nnUNetTrainerECP": "ecp + nnU-Net's Dice",
    "nnUNetTrainerFocal": "focal + nnU-Net's Dice",
    "nnUNetTrainerProperDice": "ce + proper Dice",
    "nnUNetTrainerNACLProperDice": "nacl + proper Dice",
    "nnUNetTrainerACE": "ce_dice_ace",
}


def trainer_folder() -> Path:
    """The folder in which nnU-Net finds the trainers: the value of `nnUNet_extTrainer`.

    nnU-Net imports every module in that folder.
    """
    return Path(__file__).parent / "trainer_folder"


__all__ = ["TRAINERS", "apply_to_predictions", "calibrate_results", "trainer_folder"]

_LAZY = ("apply_to_predictions", "calibrate_results")
__getattr__, __dir__ = lazy_exports(
    __name__, dict.fromkeys(_LAZY, f"{__name__}.calibrate"), ["TRAINERS", "trainer_folder"]
)
