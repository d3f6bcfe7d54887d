"""What nnU-Net imports when it looks for a trainer in this folder."""

from segcal.integrations.nnunet.trainers import *  # noqa: F403
