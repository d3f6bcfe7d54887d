"""Networks: the paper's numbers by hand, sizes that do not fit, MONAI by name, saved weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from segcal.core.errors import PathError
from segcal.models import (
    NetworkSpec,
    UNet,
    check_model,
    count_parameters,
    load_model,
    make_model,
    write_checkpoint,
)
from segcal.models.unet import _head_padded_to_eight


def conv(a: int, b: int, kernel: int = 9) -> int:
    return a * b * kernel + b


def test_the_papers_unet_by_hand() -> None:
    net = UNet(2, in_channels=1, out_channels=4)
    down = [(1, 32), (32, 64), (64, 128), (128, 256), (256, 512)]
    up = [(512 + 256, 256), (256 + 128, 128), (128 + 64, 64), (64 + 32, 32)]
    expected = sum(conv(a, b) + conv(b, b) for a, b in down + up) + conv(32, 4, kernel=1)
    assert count_parameters(net) == expected == 7_846_180
    kinds = {type(module).__name__ for module in net.modules()}
    assert kinds == {"UNet", "ModuleList", "Sequential", "Conv2d", "ReLU", "MaxPool2d"}


def test_pooling_is_2_2_2_4_and_upsampling_nearest() -> None:
    net = UNet(2, in_channels=1, out_channels=2).eval()
    sizes = []
    for level in net.down:
        level.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    net(torch.zeros(1, 1, 96, 64))
    assert sizes == [(32, 96, 64), (64, 48, 32), (128, 24, 16), (256, 12, 8), (512, 3, 2)]
    # Nearest: with identity-like weights a coarse value would be repeated, never mixed.
    seen = []
    net.up[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(torch.randn(1, 1, 32, 32))
    raised = seen[0][:, :512]
    assert raised.shape[2:] == (4, 4)
    assert torch.equal(raised, raised[:, :, :1, :1].expand_as(raised))


@pytest.mark.parametrize("dims", [2, 3])
def test_gradient_reaches_every_parameter(dims: int) -> None:
    net = UNet(dims, 1, 3, filters=(4, 8, 8), pools=(2, 2))
    net(torch.randn(2, 1, *(16,) * dims)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pools": [2, 2]}, "`pools`"),
        ({"filters": [4], "pools": []}, "`pools`"),
        ({"filters": [4, 0], "pools": [2]}, "`filters`"),
        ({"filter": 3}, "filters, pools"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
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


def test_monai_networks_take_what_the_data_says() -> None:
    for name in ("monai.BasicUNet", "monai.SegResNet"):
        spec = NetworkSpec(name, 3, in_channels=2, num_classes=5)
        check_model(make_model(spec), spec, (16, 32, 32))


def test_a_size_that_a_network_refuses_is_named_and_can_be_padded() -> None:
    spec = NetworkSpec("monai.SegResNet", 2, 1, 4)
    with pytest.raises(ValueError, match=r"37 × 37.*model.divisible_by"):
        check_model(make_model(spec), spec, (37, 37))
    spec = NetworkSpec("monai.SegResNet", 2, 1, 4, divisible_by=8)
    check_model(make_model(spec), spec, (37, 37))


def test_a_network_with_other_outputs_is_refused() -> None:
    spec = NetworkSpec("monai.BasicUNet", 2, 1, 4, {"out_channels": 7})
    with pytest.raises(ValueError, match=r"\(1, 4, 32, 32\).*\(1, 7, 32, 32\)"):
        check_model(make_model(spec), spec, (32, 32))


def test_deep_supervision_gives_heads_in_training_only() -> None:
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
def test_an_unknown_network_lists_the_choices(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{nearest}'"):
        make_model(NetworkSpec(name, 2, 1, 3))


def test_saved_weights_come_back(tmp_path: Path) -> None:
    spec = NetworkSpec("unet", 2, 1, 3, {"filters": [4, 8], "pools": [2]})
    model = make_model(spec).eval()
    path = tmp_path / "best.pt"
    write_checkpoint(path, {"network": spec.as_dict(), "model": model.state_dict()})
    image = torch.randn(1, 1, 16, 16)
    loaded = load_model(path)
    assert not loaded.training
    assert torch.equal(loaded(image), model(image))
    average = {key: value + 1 for key, value in model.state_dict().items()}
    content = {"network": spec.as_dict(), "model": model.state_dict(), "ema": average}
    write_checkpoint(path, content)
    assert torch.equal(next(load_model(path).parameters()), next(iter(average.values())))


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_bad_files_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.pt"
    with pytest.raises(PathError, match=r"best\.pt: does not exist"):
        load_model(path)
    torch.save({"format": "segcal-checkpoint", "version": 1, "x": Evil()}, path)
    with pytest.raises(PathError, match=r"best\.pt: is damaged or not safe"):
        load_model(path)
    assert "executed" not in capsys.readouterr().out
    torch.save({"state_dict": {}}, path)
    with pytest.raises(PathError, match="not a checkpoint of segcal"):
        load_model(path)
    torch.save({"format": "segcal-checkpoint", "version": 9}, path)
    with pytest.raises(PathError, match="version 9"):
        load_model(path)
    write_checkpoint(path, {"model": {}})
    with pytest.raises(PathError, match="its network cannot be built"):
        load_model(path)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_every_kind_of_damage_is_found(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.pt"
    write_checkpoint(path, {"model": {"w": torch.randn(1000)}})
    data = bytearray(path.read_bytes())
    if damage == "flip":  # torch.load alone would return the altered numbers
        data[len(data) // 2] ^= 1
    changed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "text": b"hello"}
    path.write_bytes(changed[damage])
    with pytest.raises(PathError, match=r"last\.pt: is damaged"):
        load_model(path)


@pytest.mark.parametrize(("dims", "side"), [(2, 64), (3, 32)])
def test_compiled_the_unet_is_the_same_network(dims: int, side: int) -> None:
    options = {"filters": (4, 4, 8, 8, 8), "pools": (2, 2, 2, 4)}
    torch.manual_seed(0)
    net = UNet(dims, in_channels=1, out_channels=3, **options)
    twin = UNet(dims, in_channels=1, out_channels=3, **options)
    twin.load_state_dict(net.state_dict())
    image = torch.randn(2, 1, *[side] * dims)
    weight = torch.randn(2, 3, *[side] * dims)
    plain = net(image)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)(image)
    torch.testing.assert_close(compiled, plain)
    (plain * weight).sum().backward()
    (compiled * weight).sum().backward()
    for (name, one), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("classes", [2, 5, 8, 14])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_head_head_padded_to_eight_is_the_head(dims: int, classes: int) -> None:
    head = (torch.nn.Conv2d if dims == 2 else torch.nn.Conv3d)(6, classes, kernel_size=1)
    features = torch.randn(2, 6, *[5] * dims)
    logits, expected = _head_padded_to_eight(features, head), head(features)
    torch.testing.assert_close(logits, expected)
    weight = torch.randn_like(expected)
    ours = torch.autograd.grad((logits * weight).sum(), list(head.parameters()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(head.parameters()))
    torch.testing.assert_close(ours, theirs)
