"""Validation: scoring volumes together gives the same result as scoring each one."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from segcal.core.files import write_folder
from segcal.data import PreparedCase
from segcal.data.case import Case
from segcal.data.grid import Grid
from segcal.data.intensity import ChannelIntensity
from segcal.data.store import pack_case
from segcal.metrics import CaseOptions, evaluate_case
from segcal.models import predict_logits
from segcal.training import NonFiniteLossError, validate
from segcal.training.validate import CaseScore, Validator, slices_per_batch, summarize

CPU = torch.device("cpu")
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
)
CLASSES = 3
# Two slice sizes that alternate, so that the cases of a stack are not adjacent.
SHAPES = [(3, 12, 10), (2, 9, 11), (1, 12, 10), (5, 9, 11), (4, 12, 10), (2, 12, 10)]
EMPTY, FAULTY = 4, 9.0  # the case without foreground; an image value that SomeNet answers with NaN


def store(folder: Path, image: np.ndarray, label: np.ndarray) -> PreparedCase:
    """A case on disk, as `segcal prepare` writes it."""
    shape = label.shape
    grid = Grid(
        original_shape=shape, original_spacing_mm=(2.0, 1.0, 1.0),
        affine=((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 2, 0), (0, 0, 0, 1)),
        resized_shape=shape, start=(0, 0, 0), shape=shape,
    )  # fmt: skip
    how = (ChannelIntensity(shift=0, divisor=1),) * len(image)
    case = Case(folder.name, folder.name, image, label, grid, how, voxels_sha256="0")
    write_folder(folder, pack_case(case, "float16", {})[1])
    return PreparedCase(folder)


def make_cases(folder: Path, channels: int = 2) -> list[PreparedCase]:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    cases = []
    for index, shape in enumerate(SHAPES):
        image = rng.normal(size=(channels, *shape)).astype(np.float32)
        label = rng.integers(0, CLASSES, shape).astype(np.uint8)
        if index == EMPTY:
            label[:] = 0
        # The order of the names is not that of the cases: scores must not be sorted by name.
        cases.append(store(folder / f"case_{9 - index}", image, label))
    return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[PreparedCase]:
    return make_cases(tmp_path_factory.mktemp("cases"))


class SomeNet(nn.Module):
    """Random weights, different in training and evaluation mode; records its batch sizes."""

    def __init__(self, dims: int = 2, channels: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)  # type: ignore[assignment]
        self.net = nn.Sequential(conv(channels, 8, 3, padding=1), norm(8), conv(8, CLASSES, 1))
        self.seen: list[int] = []

    def forward(self, image: Tensor) -> Tensor:
        self.seen.append(len(image))
        logits: Tensor = 4 * self.net(image)
        worst = image.flatten(1).amax(1) == FAULTY
        return logits.masked_fill(worst.reshape(-1, *[1] * (image.ndim - 1)), math.nan)


def validator(cases: list[PreparedCase], device: str = "cpu", **changes: object) -> Validator:
    options = {"groups": None, "batch_size": 4, "device": torch.device(device)} | changes
    return Validator(cases, CLASSES, **options)  # type: ignore[arg-type]


def alone(
    net: nn.Module,
    case: PreparedCase,
    patch: tuple[int, int, int] | None = None,
    device: str = "cpu",
) -> CaseScore:
    """The score of a single case, by the metrics of `segcal evaluate`."""
    net.eval()
    logits = predict_logits(net, torch.from_numpy(case.image()).to(device), patch_size=patch)
    rows = evaluate_case(
        logits.softmax(0),
        case.label(),
        case.spacing_mm,
        case=case.name,
        options=CaseOptions(regions=("all",)),
    ).rows
    value = {(row.metric, row.label): row.value for row in rows}
    labels = [str(k) for k in range(1, CLASSES)]
    dsc = {label: value["dsc", label] for label in labels}
    return CaseScore(case.name, dsc, value["ece", "all"], value["cece", "all"], value["nll", "all"])


def assert_same(found: list[CaseScore] | None, expected: list[CaseScore]) -> None:
    assert found is not None
    assert [score.name for score in found] == [score.name for score in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.dsc == pytest.approx(other.dsc, abs=1e-12)
        for name in ("ece", "cece", "nll"):
            wanted = pytest.approx(getattr(other, name), abs=1e-6, nan_ok=True)
            assert getattr(one, name) == wanted


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("patch", [None, (2, 8, 8)])
def test_scores_are_those_of_single_cases(
    device: str,
    patch: tuple[int, int, int] | None,
    cases: list[PreparedCase],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The batch size changes how cuDNN computes; with TF32 labels would differ.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    net = SomeNet(dims=2 if patch is None else 3).to(device)
    expected = [alone(net, case, patch, device) for case in cases]
    net.train()
    ours = validator(cases, device, patch_size=patch)
    for _ in range(2):  # read from disk, then from memory
        scores = ours.score(net)
        assert_same(scores, expected)
    assert net.training
    assert scores is not None
    assert len({score.ece for score in scores}) == len(cases)
    summary = summarize(scores)
    assert (summary["cases"], summary["region"]) == (len(cases), "all")
    assert summary["ece"] == pytest.approx(sum(score.ece for score in scores) / len(cases))


def test_batch_size_and_order_do_not_change_the_scores(
    cases: list[PreparedCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = SomeNet()
    expected = [alone(net, case) for case in cases]
    seen = {}
    for batch_size in (1, 4, 1000):
        net.seen.clear()
        assert_same(validator(cases, batch_size=batch_size).score(net), expected)
        seen[batch_size] = list(net.seen)
    # 3 + 1 + 4 + 2 slices of the one size, 2 + 5 of the other
    assert seen == {1: [1] * 17, 4: [4, 4, 2, 4, 3], 1000: [10, 7]}
    assert_same(validator(cases[::-1]).score(net), expected[::-1])
    # A limit of three slices: a case with more slices is not divided.
    monkeypatch.setattr(validate, "_MAX_LOGITS", 3 * 12 * 10 * CLASSES)
    net.seen.clear()
    assert_same(validator(cases, batch_size=1000).score(net), expected)
    assert net.seen == [3, 2, 1, 5, 4, 2]


def test_the_labels_of_a_group_are_one_structure(cases: list[PreparedCase]) -> None:
    scores = validator(cases, groups={"both": (1, 2)}).score(SomeNet())
    assert scores is not None
    assert [list(score.dsc) for score in scores] == [["both"]] * len(cases)
    assert scores[EMPTY].dsc == {"both": 0.0}  # predicted, but not in the label


def test_volumes_stay_in_memory_if_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = SomeNet()
    for share in (0.1, 0.0):
        monkeypatch.setattr(validate, "_KEPT_SHARE", share)
        cases = make_cases(tmp_path / str(share))
        ours = validator(cases)
        first = ours.score(net)
        for case in cases:
            write_folder(case.folder, {})
        if share:
            assert_same(ours.score(net), first or [])
        else:
            with pytest.raises(Exception, match=cases[0].name):
                ours.score(net)


@pytest.mark.parametrize("patch", [None, (2, 9, 10)])
def test_the_case_of_logits_that_are_not_finite_is_named(
    patch: tuple[int, int, int] | None, tmp_path: Path
) -> None:
    cases = make_cases(tmp_path)
    image = cases[2].image()
    image[1, -1, 3, 4] = FAULTY
    cases[2] = store(tmp_path / "faulty", image, cases[2].label())
    net = SomeNet(dims=2 if patch is None else 3).train()
    with pytest.raises(NonFiniteLossError, match="case faulty are not finite"):
        validator(cases, patch_size=patch).score(net)
    assert net.training


def test_a_label_without_a_class_is_an_error(tmp_path: Path) -> None:
    cases = make_cases(tmp_path)
    label = cases[0].label()
    label[0, 0, 0] = CLASSES
    cases[0] = store(tmp_path / "more", cases[0].image(), label)
    with pytest.raises(ValueError, match=r"labels in 0\.\.2 .* but got 3"):
        validator(cases).score(SomeNet())


def test_validation_can_be_stopped_between_batches(cases: list[PreparedCase]) -> None:
    net = SomeNet().train()
    assert validator(cases).score(net, lambda: len(net.seen) == 2) is None
    assert net.seen == [4, 4]
    assert net.training
    net = SomeNet(dims=3)
    ours = validator(cases, patch_size=(5, 12, 12))
    assert ours.score(net, lambda: len(net.seen) >= 1) is None
    assert net.seen == [1]


def test_a_process_without_cases_has_no_scores() -> None:
    assert validator([]).score(SomeNet()) == []


def test_small_slices_are_predicted_in_large_batches_on_a_gpu(cases: list[PreparedCase]) -> None:
    gpu = torch.device("cuda")
    assert slices_per_batch(cases, 4, CPU) == 16
    assert slices_per_batch(cases, 20, CPU) == 20
    assert slices_per_batch(cases, 4, gpu) == (1 << 20) // (12 * 10)
    assert slices_per_batch(cases[1:2], 4, gpu) == (1 << 20) // (9 * 11)
    assert slices_per_batch(cases, 10_000, gpu) == 10_000
