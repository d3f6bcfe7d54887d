"""The U-Net: the paper's size, gradients, and the variants for the compiler."""

import pytest
import torch

from segcal.models import UNet, count_parameters
from segcal.models.unet import head_padded_to_eight


def conv(a: int, b: int, kernel: int = 9) -> int:
    return a * b * kernel + b


def test_the_number_of_parameters_is_that_of_the_paper() -> None:
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
    # Nearest-neighbor upsampling repeats a coarse value.
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


@pytest.mark.parametrize(("dims", "side"), [(2, 64), pytest.param(3, 32, marks=pytest.mark.slow)])
def test_compiling_the_unet_does_not_change_its_result(dims: int, side: int) -> None:
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
def test_padding_the_head_to_eight_classes_does_not_change_its_result(
    dims: int, classes: int
) -> None:
    head = (torch.nn.Conv2d if dims == 2 else torch.nn.Conv3d)(6, classes, kernel_size=1)
    features = torch.randn(2, 6, *[5] * dims)
    logits, expected = head_padded_to_eight(features, head), head(features)
    torch.testing.assert_close(logits, expected)
    weight = torch.randn_like(expected)
    ours = torch.autograd.grad((logits * weight).sum(), list(head.parameters()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(head.parameters()))
    torch.testing.assert_close(ours, theirs)
