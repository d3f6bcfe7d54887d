"""The fast launcher, with a kernel that only records its arguments: there may be no GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from segcal.losses.kernels import launch
from segcal.losses.kernels.launch import Work

pytest.importorskip("triton", reason="the kernels need Triton")


class Kernel:
    """Records how it was launched: through Triton, or directly when compiled."""

    arg_names = ("x", "N", "K")

    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, **options: Any) -> Any:
            self.launches.append(("triton", arguments, options))
            return Compiled(self)

        return start


class Compiled:
    """What a launch through Triton returns."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.run = kernel, SimpleNamespace()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.kernel.launches.append(("direct", arguments, {}))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr("torch.cuda.current_device", lambda: -1)  # the device of a CPU tensor
    monkeypatch.setattr(launch, "_current_stream", lambda device: 0)
    monkeypatch.setattr(launch, "_has_hooks", lambda: False)
    return Work(Kernel(), 1, (7,), {"K": 4}, hints={"maxnreg": 64}, compiled={})


def test_the_second_launch_is_direct(work: Work) -> None:
    tensor = torch.zeros(4)
    for _ in range(2):
        launch.launch((work, [tensor]))
    first, second = work.kernel.launches
    assert first == ("triton", (tensor, 7), {"K": 4, "maxnreg": 64})
    assert second == ("direct", (tensor.data_ptr(), 7, 4), {})


def test_unaligned_tensors_go_through_triton(work: Work) -> None:
    tensor = torch.zeros(5)
    for _ in range(2):
        launch.launch((work, [tensor[1:]]))
    assert [path for path, *_ in work.kernel.launches] == ["triton", "triton"]


def test_it_can_be_switched_off(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ENABLED", False)
    for _ in range(2):
        launch.launch((work, [torch.zeros(4)]))
    assert [path for path, *_ in work.kernel.launches] == ["triton", "triton"]
    assert work.kernel.launches[0][2] == {"K": 4, "maxnreg": 64}


def test_old_versions_of_triton_do_without(work: Work) -> None:
    for _ in range(2):
        launch.launch((work._replace(compiled=None), [torch.zeros(4)]))
    assert [path for path, *_ in work.kernel.launches] == ["triton", "triton"]
