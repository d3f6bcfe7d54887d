"""Fused twins of the pixel-wise losses, in Triton. Never imported unless used.

`run` computes what the plain functions compute, in one pass over logits and labels for
the value and one for the gradient: no one-hot labels, no prior tensor, no copy of the logits.
"""

from segcal.losses.kernels.pixel_loss import Plan, Recipe, plan_for, run, why_not

__all__ = ["Plan", "Recipe", "plan_for", "run", "why_not"]
