"""The U-Net with instance normalization: shapes, options, padding, a compiled step."""

from typing import Any

import pytest
import torch
from torch import nn

from segcal.models import NetworkSpec, NormUNet, make_model
from segcal.models.norm_unet import _Norm

SMALL: dict[str, Any] = {"filters": (4, 8, 8)}


@pytest.mark.parametrize(("dims", "size"), [(2, (16, 8)), (3, (4, 16, 8))])
def test_logits_have_the_size_of_the_image(dims: int, size: tuple[int, ...]) -> None:
    net = NormUNet(dims, 2, 3, **SMALL)
    assert net(torch.randn(2, 2, *size)).shape == (2, 3, *size)
    assert net.divisible_by == (4,) * dims


def test_every_option_changes_the_network() -> None:
    def parameters(**options: Any) -> int:
        return sum(p.numel() for p in NormUNet(3, 1, 3, **{**SMALL, **options}).parameters())

    base = parameters()
    for options in (
        {"filters": (4, 8)}, {"kernels": ((1, 3, 3), 3, 3)}, {"strides": ((1, 2, 2), 2)},
        {"residual": True}, {"deep_supervision": 1},
    ):  # fmt: skip
        assert parameters(**options) != base


def test_anisotropic_strides_pad_each_axis_as_needed() -> None:
    spec = NetworkSpec("norm_unet", 3, 1, 3, {**SMALL, "strides": ((1, 2, 2), (2, 2, 2))})
    model = make_model(spec).eval()
    image = torch.randn(1, 1, 3, 9, 8)
    padded = torch.zeros(1, 1, 4, 12, 8)
    padded[:, :, :3, :9] = image
    torch.testing.assert_close(model(image), model.net(padded)[:, :, :3, :9])


def test_deep_supervision_returns_coarser_heads_in_training() -> None:
    net = NormUNet(2, 1, 3, filters=(4, 8, 8, 8), deep_supervision=2)
    heads = net(torch.randn(1, 1, 16, 16))
    assert [tuple(head.shape) for head in heads] == [(1, 3, 16, 16)] * 3
    assert not torch.equal(heads[0], heads[1])
    torch.testing.assert_close(
        net.eval()(image := torch.randn(1, 1, 16, 16)), net.train()(image)[0]
    )


def test_the_compiled_formula_is_instance_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, image = _Norm(3), torch.randn(2, 3, 4, 5, 6) * 3 + 1
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_()
    reference = nn.InstanceNorm3d(3, affine=True)
    reference.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(image), reference(image))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(norm(image), reference(image))


def test_the_coarsest_level_may_be_one_voxel() -> None:
    logits = NormUNet(2, 1, 3, **SMALL)(torch.randn(1, 1, 4, 4))
    assert bool(torch.isfinite(logits).all())


@pytest.mark.parametrize(
    ("options", "name"),
    [({"strides": (2,)}, "strides"), ({"kernels": (3, 3, (3, 3, 3))}, "kernels"),
     ({"deep_supervision": 5}, "deep_supervision")],
)  # fmt: skip
def test_invalid_options_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        NormUNet(2, 1, 3, **{**SMALL, **options})
