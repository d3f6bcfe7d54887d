"""The pixel-wise losses as fused Triton kernels. Imported only when a loss runs on CUDA.

The kernels compute what the torch code computes, in one pass over logits and labels for the value
and one for the gradient: without one-hot labels, a prior tensor or a copy of the logits. A loss
that `supports` does not know runs in torch.
"""

from segcal.losses.kernels.pixel_loss import run
from segcal.losses.kernels.recipes import supports

__all__ = ["run", "supports"]
