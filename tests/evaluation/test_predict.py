"""Volumes through networks; `segcal predict` on the grid of the source files."""

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from torch import nn

from runs import settings
from segcal.data import find_images, open_dataset, plan_source, prepare
from segcal.evaluation import evaluate_run, open_run, predict_case, predict_volumes
from segcal.models import predict_logits
from segcal.training import train
from trees import acdc_tree, brats_tree, run_cli, save, scan


class Shift(nn.Module):
    """Logits that depend on where a voxel is, so that a mirror image gives others."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        ramp = torch.linspace(0, 1, image.shape[-1]).expand_as(image)
        return torch.cat([image * ramp, -image, ramp], dim=1)


def test_slices_in_batches_and_windows() -> None:
    image = torch.randn(1, 5, 8, 8)
    whole = predict_logits(Shift(), image, batch_size=5)
    for batch_size in (1, 2, 16):
        torch.testing.assert_close(predict_logits(Shift(), image, batch_size=batch_size), whole)
    net = nn.Conv3d(1, 3, 1)
    windows = predict_logits(net, image, patch_size=(4, 4, 4))
    torch.testing.assert_close(windows, net(image[None])[0].detach())
    with pytest.raises(ValueError, match=r"\(C, Z, Y, X\)"):
        predict_logits(net, image[0])


def test_averages_by_hand() -> None:
    image = torch.randn(1, 2, 6, 6)
    plain = predict_case(Shift(), image)
    assert plain.logits is not None
    torch.testing.assert_close(plain.probs, plain.logits.softmax(0))
    mirrored = predict_logits(Shift(), image.flip(3)).flip(3)
    flipped = predict_case(Shift(), image, flips="w")
    torch.testing.assert_close(flipped.probs, (plain.probs + mirrored.softmax(0)) / 2)
    assert flipped.logits is None
    logits = predict_case(Shift(), image, flips="w", average="logits")
    torch.testing.assert_close(logits.probs, ((plain.logits + mirrored) / 2).softmax(0))
    # Two axes are four images: a network that looks at one voxel at a time does not care.
    point = nn.Conv2d(1, 3, 1)
    torch.testing.assert_close(
        predict_case(point, image, flips="hw").probs, predict_case(point, image).probs
    )
    other = nn.Conv2d(1, 3, 1)
    both = predict_case([point, other], image).probs
    each = [predict_case(net, image).probs for net in (point, other)]
    torch.testing.assert_close(both, (each[0] + each[1]) / 2)
    with pytest.raises(ValueError, match="`flips`"):
        predict_case(point, image, flips="q")
    with pytest.raises(ValueError, match="NaN or infinity"):
        predict_case(point, image * torch.nan)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return acdc_tree(tmp_path_factory.mktemp("acdc") / "training", patients=6)


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    prepare(plan_source("acdc", source, dtype="uint8"), root / "data", workers=1)
    train(settings(root / "data", epochs=1, optimiser={"lr": 0.01}), root / "run")
    return root / "run"


def test_the_original_grid(run: Path, source: Path, tmp_path: Path) -> None:
    """The same as the evaluated case, brought back; the data folder is not needed."""
    case = open_dataset(open_run(run).config.data.path).part("test")[0]
    folder = tmp_path / "in"
    folder.mkdir()
    original = next(source.rglob(f"{case.name}.nii.gz"))
    shutil.copy(original, folder)
    files = predict_volumes([run], folder, tmp_path / "out")
    assert sorted(path.name for path in files) == [
        f"{case.name}_{what}.nii.gz" for what in ("confidence", "entropy", "labels", "probs")
    ]
    maps = {path.name.split("_")[-1][:-7]: nib.load(path) for path in files}
    reference = nib.load(original)
    for image in maps.values():
        np.testing.assert_allclose(image.affine, reference.affine)
        assert image.shape[:3] == reference.shape
    probs = np.asarray(maps["probs"].dataobj)
    assert (probs.shape, probs.dtype) == ((*reference.shape, 4), np.float32)
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(maps["labels"].dataobj), probs.argmax(-1))
    np.testing.assert_array_equal(np.asarray(maps["confidence"].dataobj), probs.max(-1))
    entropy = -(probs * np.log(np.maximum(probs, 1e-12))).sum(-1)
    np.testing.assert_allclose(np.asarray(maps["entropy"].dataobj), entropy, atol=1e-5)
    network = open_run(run).network("best", torch.device("cpu"))
    stored = predict_case(network, torch.from_numpy(case.image())).probs.numpy()
    np.testing.assert_allclose(probs.T, case.grid.restore_probs(stored), atol=1e-5)


def test_options_and_several_runs(run: Path, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), folder / "x.nii.gz")
    data = open_run(run).config.data.path
    train(settings(Path(data), epochs=1, seed=1, optimiser={"lr": 0.01}), tmp_path / "other")

    def probs(*runs: Path, **options: object) -> np.ndarray:
        path = predict_volumes(
            runs, folder, tmp_path / "out", outputs=["probs"], overwrite=True, **options
        )
        assert len(path) == 1
        return np.asarray(nib.load(path[0]).dataobj)

    one, two = probs(run), probs(tmp_path / "other")
    both = probs(run, tmp_path / "other")
    np.testing.assert_allclose(both, (one + two) / 2, atol=1e-5)
    assert not np.allclose(probs(run, tmp_path / "other", average="logits"), both, atol=1e-4)
    assert not np.array_equal(probs(run, flips="w"), one)
    with pytest.raises(ValueError, match="is there already; say --overwrite"):
        predict_volumes([run], folder, tmp_path / "out", outputs=["probs"])
    with pytest.raises(ValueError, match="`outputs`"):
        predict_volumes([run], folder, tmp_path / "out", outputs=["prob"])


def test_the_command(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path / "in" / "a_0000.nii.gz", scan((40, 48, 3), 5), np.diag([1.5, 1.5, 10, 1]))
    save(tmp_path / "in" / "a_gt.nii.gz", scan((40, 48, 3), 5), np.diag([1.5, 1.5, 10, 1]))
    where = ("--input", tmp_path / "in", "--out", tmp_path / "out")
    assert run_cli(monkeypatch, "predict", run, *where, "--output", "labels") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a_labels.nii.gz"]
    capsys.readouterr()
    assert run_cli(monkeypatch, "predict", run, *where) == 2
    assert "a_labels.nii.gz: is there already" in capsys.readouterr().err
    (tmp_path / "in" / "a_0000.nii.gz").write_bytes(b"nothing")
    assert run_cli(monkeypatch, "predict", run, *where, "--overwrite") == 2
    assert "a_0000.nii.gz: is not a NIfTI file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run_cli(monkeypatch, "predict", run, "--input", tmp_path / "empty", *where[2:]) == 2
    assert "holds no .nii or .nii.gz images" in capsys.readouterr().err


def test_names_of_channels(tmp_path: Path) -> None:
    source = brats_tree(tmp_path / "brats", cases=2)
    channels = ("FLAIR", "T1", "T1ce", "T2")
    found = find_images(source / "HGG", channels)
    (name,) = found
    assert [path.name for path in found[name]] == [
        f"{name}_{m}.nii.gz" for m in ("flair", "t1", "t1ce", "t2")
    ]
    for number in range(4):
        save(tmp_path / "nn" / f"b_{number:04d}.nii.gz", scan((4, 4, 4), number))
    found = find_images(tmp_path / "nn", channels)
    assert [path.name[:6] for path in found["b"]] == [f"b_{n:04d}" for n in range(4)]
    (tmp_path / "nn" / "b_0002.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"b_0002\.nii\.gz: is missing"):
        find_images(tmp_path / "nn", channels)
    # Numbered names of images with one channel are names.
    assert set(find_images(tmp_path / "nn", ["MR"])) == {"b_0000", "b_0001", "b_0003"}


@pytest.mark.slow
def test_3d_networks_slide(tmp_path: Path) -> None:
    from runs import phantom

    data = phantom(tmp_path / "data", cases=10, size=32, slices=8)
    config = settings(data, epochs=1, data={"mode": "3d", "patch_size": [4, 16, 16]}, batch_size=2)
    train(config, tmp_path / "run")
    found = evaluate_run(tmp_path / "run")
    assert found.about["cases"] == 2
    assert found.means()["dsc"] >= 0
