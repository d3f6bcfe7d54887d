"""When a training counts as broken down: one definition for the training log and the report."""

# Validation DSC below this share of the best value is a breakdown,
BREAKDOWN_SHARE = 0.5
# provided that the network had learned something: the best value is at least this.
LEARNED_DSC = 0.2


def broke_down(dsc: float, best_dsc: float) -> bool:
    """Whether a validation DSC is so far below the best one that the training broke down.

    Example:
        >>> broke_down(0.3, best_dsc=0.8), broke_down(0.5, best_dsc=0.8), broke_down(0.0, 0.1)
        (True, False, False)
    """
    return best_dsc >= LEARNED_DSC and dsc < BREAKDOWN_SHARE * best_dsc
