"""Fixtures for the tests of the losses."""

import pytest
import torch
from torch import Tensor


@pytest.fixture(params=[(2, 4, 12, 10), (2, 3, 6, 7, 8)], ids=["2d", "3d"])
def batch(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Random logits in float64 and labels, in 2-D and in 3-D."""
    shape = request.param
    logits = 3 * torch.randn(shape, dtype=torch.float64)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]))
