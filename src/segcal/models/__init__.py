"""Networks: the paper's U-Net, any of MONAI's by name, and those in checkpoint files.

MONAI is imported only when one of its networks is asked for.
"""

from segcal.models.checkpoint import load_model, read_checkpoint
from segcal.models.inference import predict_logits
from segcal.models.network import (
    MODELS,
    NetworkSpec,
    SegmentationNetwork,
    check_model,
    count_parameters,
    make_model,
)
from segcal.models.unet import UNet

__all__ = [
    "MODELS",
    "NetworkSpec",
    "SegmentationNetwork",
    "UNet",
    "check_model",
    "count_parameters",
    "load_model",
    "make_model",
    "predict_logits",
    "read_checkpoint",
]
