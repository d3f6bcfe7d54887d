"""Fused twins of the pixel-wise losses, in Triton. Never imported unless used.

`fused_terms` computes what the plain functions compute, in one pass over logits and labels for
the value and one for the gradient: no one-hot labels, no prior tensor, no copy of the logits.
"""

from segcal.kernels.pixel_loss import Recipe, fused_terms, why_not

__all__ = ["Recipe", "fused_terms", "why_not"]
