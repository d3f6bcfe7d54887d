"""Networks by name: options, image sizes, MONAI, deep supervision."""

from typing import Any

import pytest
import torch

from segcal.models import NETWORKS, NetworkSpec, check_model, make_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pools": [2, 2]}, "`pools`"),
        ({"filters": [4], "pools": []}, "`pools`"),
        ({"filters": [4, 0], "pools": [2]}, "`filters`"),
        ({"filter": 3}, "filters, pools"),
    ],
)
def test_invalid_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(NetworkSpec("unet", 2, 1, 3, options))


def test_any_size_is_padded_and_cropped() -> None:
    torch.manual_seed(0)
    model = make_model(NetworkSpec("unet", 2, 1, 3)).eval()
    image = torch.randn(1, 1, 40, 32)
    padded = torch.zeros(1, 1, 64, 32)
    padded[:, :, :40] = image
    assert torch.equal(model(image), model(padded)[:, :, :40])
    assert model(image).is_contiguous()


def test_monai_networks_get_channels_and_classes_of_the_data() -> None:
    for name in ("monai.BasicUNet", "monai.SegResNet"):
        spec = NetworkSpec(name, 3, in_channels=2, num_classes=5)
        check_model(make_model(spec), spec, (16, 32, 32))


def test_divisible_by_pads_an_image_size_that_fails() -> None:
    spec = NetworkSpec("monai.SegResNet", 2, 1, 4)
    with pytest.raises(ValueError, match=r"37 × 37.*model.divisible_by"):
        check_model(make_model(spec), spec, (37, 37))
    spec = NetworkSpec("monai.SegResNet", 2, 1, 4, divisible_by=8)
    check_model(make_model(spec), spec, (37, 37))


def test_a_network_with_other_outputs_is_an_error() -> None:
    spec = NetworkSpec("monai.BasicUNet", 2, 1, 4, {"out_channels": 7})
    with pytest.raises(ValueError, match=r"\(1, 4, 32, 32\).*\(1, 7, 32, 32\)"):
        check_model(make_model(spec), spec, (32, 32))


def test_deep_supervision_returns_heads_only_in_training() -> None:
    options = {
        "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16], "deep_supervision": True, "deep_supr_num": 1,
    }  # fmt: skip
    model = make_model(NetworkSpec("monai.DynUNet", 2, 1, 3, options))
    heads = model(torch.zeros(2, 1, 16, 16))
    assert isinstance(heads, tuple)
    assert [tuple(head.shape) for head in heads] == [(2, 3, 16, 16)] * 2
    assert model.eval()(torch.zeros(2, 1, 16, 16)).shape == (2, 3, 16, 16)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("unett", "unet"), ("BasicUNet", "monai.BasicUNet"), ("monai.SegResNett", "monai.SegResNet")],
)
def test_an_unknown_network_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{nearest}'"):
        make_model(NetworkSpec(name, 2, 1, 3))


def test_networks_are_listed() -> None:
    assert list(NETWORKS)[:2] == ["unet", "norm_unet"]
