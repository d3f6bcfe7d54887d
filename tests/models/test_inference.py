"""Sliding windows: several at a time give what single windows give."""

import pytest
import torch
from torch import nn

from segcal.models import inference, predict_logits


def test_windows_are_predicted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, seen = nn.Conv3d(1, 3, kernel_size=3, padding=1), []
    net.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    image = torch.randn(1, 8, 12, 12)
    single = predict_logits(net, image, batch_size=1, patch_size=(4, 8, 8))
    assert set(seen) == {1}
    windows = len(seen)
    seen.clear()
    torch.testing.assert_close(
        predict_logits(net, image, batch_size=5, patch_size=(4, 8, 8)), single
    )
    assert max(seen) == 5
    assert sum(seen) == windows
    seen.clear()
    monkeypatch.setattr(inference, "_VOXELS_PER_BATCH", 8 * 2 * 4 * 8 * 8)  # memory for two windows
    predict_logits(net, image, batch_size=5, patch_size=(4, 8, 8))
    assert max(seen) == 2
