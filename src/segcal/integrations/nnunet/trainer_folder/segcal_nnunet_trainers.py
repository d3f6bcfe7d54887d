"""The module that nnU-Net imports when it searches this folder for trainers."""

from segcal.integrations.nnunet.trainers import *  # noqa: F403
