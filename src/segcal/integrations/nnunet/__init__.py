"""segcal in nnU-Net v2: trainers with calibrated losses, and calibration of its softmax.

Importing this needs no nnU-Net; `segcal.integrations.nnunet.trainers` does.
"""

from pathlib import Path

# Trainer class -> the loss of `segcal.losses.LOSSES` that takes the place of cross-entropy.
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

    nnU-Net imports every module of that folder, so it holds nothing but them.
    """
    return Path(__file__).parent / "trainer_folder"


__all__ = ["TRAINERS", "trainer_folder"]
