"""Networks by name or import path, checkpoints, and inference on whole volumes."""

from segcal.models.checkpoint import load_model, read_checkpoint, write_checkpoint
from segcal.models.inference import predict_logits
from segcal.models.network import (
    NETWORKS,
    NetworkSpec,
    SegmentationNetwork,
    check_model,
    count_parameters,
    make_model,
)
from segcal.models.norm_unet import NormUNet
from segcal.models.unet import UNet

__all__ = [
    "NETWORKS", "NetworkSpec", "NormUNet", "SegmentationNetwork", "UNet", "check_model",
    "count_parameters", "load_model", "make_model", "predict_logits", "read_checkpoint",
    "write_checkpoint",
]  # fmt: skip
