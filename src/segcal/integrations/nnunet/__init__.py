"""segcal in nnU-Net v2: trainers with calibrated losses, and calibration of its softmax.

Only `segcal.integrations.nnunet.trainers` needs nnU-Net to be installed.
"""

from pathlib import Path

# Trainer class -> the loss in `segcal.losses.LOSSES` that replaces cross-entropy.
TRAINERS = {
    "nnUNetTrainerNACL": "nacl",
    "nnUNetTrainerSVLS": "svls",
    "nnUNetTrainerMbLS": "mbls",
    "nnUNetTrainerLS": "ls",
    "nnUNetTrainerECP": "ecp",
    "nnUNetTrainerFocal": "focal",
}


def trainer_folder() -> Path:
    """The folder in which nnU-Net finds the trainers: the value of `nnUNet_extTrainer`.

    nnU-Net imports every module in that folder.
    """
    return Path(__file__).parent / "trainer_folder"


__all__ = ["TRAINERS", "trainer_folder"]
