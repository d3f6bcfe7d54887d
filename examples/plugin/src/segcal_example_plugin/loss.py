"""A loss: one class with one method."""

from torch import Tensor

from segcal.losses import Pixels, SegmentationLoss


class PolyLoss(SegmentationLoss):
    """CE + ε·(1 − s^y), the first polynomial loss (Leng et al., ICLR 2022).

    Args:
        epsilon: ε, the weight of the second term.
        ignore_index: label of pixels that do not count.
    """

    def __init__(self, epsilon: float = 1.0, *, ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.epsilon = epsilon

    def pixel_terms(self, pixels: Pixels) -> dict[str, Tensor]:
        log_prob = (pixels.log_probs * pixels.one_hot()).sum(1)
        return {"ce": -log_prob, "poly": self.epsilon * (1 - log_prob.exp())}
