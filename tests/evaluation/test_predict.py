"""Prediction of volumes; `segcal predict` on the grid of the source files."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from torch import nn

from helpers.image_files import write_as, write_dicom
from helpers.runs import settings
from helpers.trees import acdc_tree, brats_tree, oblique, run_cli, save, scan
from segcal.data import AcdcSource, find_images, open_dataset, prepare, write_nifti
from segcal.evaluation import evaluate_run, open_run, predict_case, predict_volumes
from segcal.models import predict_logits
from segcal.predictions import class_names, find_pairs
from segcal.training import train


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


def unusual(said: list[str]) -> list[str]:
    """The lines about orientation and spacing; that the scans were trained on is left out."""
    return [line for line in said if "was trained or validated on" not in line]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return acdc_tree(tmp_path_factory.mktemp("acdc") / "training", patients=6)


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    prepare(AcdcSource(source), root / "data", dtype="uint8", workers=1)
    train(settings(root / "data", epochs=1, optimizer={"lr": 0.01}), root / "run")
    return root / "run"


def test_the_original_grid(run: Path, source: Path, tmp_path: Path) -> None:
    """The same as the evaluated case, brought back; the data folder is not needed."""
    case = open_dataset(open_run(run).config.data.path).part("test")[0]
    folder = tmp_path / "in"
    folder.mkdir()
    original = next(source.rglob(f"{case.name}.nii.gz"))
    shutil.copy(original, folder)
    files = predict_volumes([run], folder, tmp_path / "out").written
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


def test_an_unfinished_run_and_label_maps_are_named(
    run: Path, source: Path, tmp_path: Path
) -> None:
    folder, labels = tmp_path / "in", tmp_path / "labels"
    folder.mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), folder / "x.nii.gz")
    said: list[str] = []
    predict_volumes([run], folder, tmp_path / "whole", warn=said.append)
    assert not [line for line in said if "stopped after" in line]
    stopped = tmp_path / "stopped run"
    shutil.copytree(run, stopped)
    config = (stopped / "config.yaml").read_text()
    assert "epochs: 1\n" in config
    (stopped / "config.yaml").write_text(config.replace("epochs: 1\n", "epochs: 3\n"))
    said = []
    predict_volumes([stopped], folder, tmp_path / "part", warn=said.append)
    evaluate_run(stopped, split="val", say=said.append)
    lines = [line for line in said if "stopped after 1 of 3 epochs" in line]
    assert len(lines) == 2
    assert f"segcal train --out '{stopped}' --resume" in lines[0]
    labels.mkdir()
    shutil.copy(next(source.rglob("*_frame01_gt.nii.gz")), labels / "x.nii.gz")
    with pytest.raises(ValueError, match=r"x.nii.gz: .* like a label map; give the folder of the"):
        predict_volumes([run], labels, tmp_path / "none")


def test_patients_of_a_fit_are_counted(run: Path, source: Path, tmp_path: Path) -> None:
    """Two frames of a patient are two cases; whether a calibrator helps is decided by patients."""
    copy, folder = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "in"
    folder.mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), folder / "x.nii.gz")
    said: list[str] = []
    predict_volumes([copy], folder, tmp_path / "out", calibrator="temperature", warn=said.append)
    cases = len(open_run(copy).info.cases["val"])
    (line,) = (line for line in said if "fitted on" in line)
    patients = "1 patient" if cases == 2 else f"{cases // 2} patients"
    assert f"fitted on {cases} validation cases of {patients}: too few" in line


def test_options_and_several_runs(run: Path, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), folder / "x.nii.gz")
    data = open_run(run).config.data.path
    train(settings(Path(data), epochs=1, seed=1, optimizer={"lr": 0.01}), tmp_path / "other")

    def probs(*runs: Path, **options: object) -> np.ndarray:
        path = predict_volumes(
            runs, folder, tmp_path / "out", outputs=["probs"], overwrite=True, **options
        ).written
        assert len(path) == 1
        return np.asarray(nib.load(path[0]).dataobj)

    one, two = probs(run), probs(tmp_path / "other")
    both = probs(run, tmp_path / "other")
    np.testing.assert_allclose(both, (one + two) / 2, atol=1e-5)
    assert not np.allclose(probs(run, tmp_path / "other", average="logits"), both, atol=1e-4)
    assert not np.array_equal(probs(run, flips="w"), one)
    with pytest.raises(
        ValueError, match="exists already, predicted with other settings; pass --over"
    ):
        predict_volumes([run], folder, tmp_path / "out", outputs=["probs"])
    with pytest.raises(ValueError, match="`--output`"):
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
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["a_labels.nii.gz", "predict.json"]
    capsys.readouterr()
    assert run_cli(monkeypatch, "predict", run, *where, "--output", "labels") == 0
    shown = capsys.readouterr()
    assert "0 files written; 1 scans were predicted before" in shown.out
    (line,) = unusual(shown.err.splitlines())
    assert "1 label maps skipped" in line
    assert run_cli(monkeypatch, "predict", run, *where, "--flips", "w") == 2
    assert "a_labels.nii.gz: exists already, predicted with other" in capsys.readouterr().err
    (tmp_path / "in" / "a_0000.nii.gz").write_bytes(b"nothing")
    assert run_cli(monkeypatch, "predict", run, *where, "--overwrite") == 2
    assert "a_0000.nii.gz: is not a NIfTI file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run_cli(monkeypatch, "predict", run, "--input", tmp_path / "empty", *where[2:]) == 2
    assert "holds no images" in capsys.readouterr().err


def test_every_format_and_files_that_are_skipped(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One volume as NIfTI, DICOM and MHA gives the same maps on the same grid."""
    folder, affine = tmp_path / "in", oblique((1.5, 1.5, 10.0))
    values = scan((40, 48, 3), 5, np.int16).T
    for form in ("nii.gz", "dicom", "mha"):
        write_as(form, folder / form[:3], values, affine, "image")
    for name in ("nii_gt", "dic_seg", "mha_mask"):
        save(folder / f"{name}.nii.gz", values.T % 4, affine)
    save(folder / "nii_4d.nii.gz", scan((40, 48, 3, 5), 5), affine)
    command = ("predict", run, "--input", folder, "--out", tmp_path / "out", "--output", "probs")
    assert run_cli(monkeypatch, *command) == 0
    shown = capsys.readouterr().err.splitlines()
    assert [line.split(" skipped")[0] for line in shown if "skipped" in line] == [
        "segcal: 3 label maps",
        "segcal: 1 files with several time frames or channels",
    ]
    maps = [nib.load(tmp_path / "out" / f"{name}_probs.nii.gz") for name in ("nii", "dic", "mha")]
    assert len(list((tmp_path / "out").glob("*.nii.gz"))) == 3
    for other in maps:
        np.testing.assert_allclose(other.affine, affine, atol=1e-5)
        np.testing.assert_allclose(other.get_fdata(), maps[0].get_fdata(), atol=1e-6)
    # A changed slice of a series is noticed.
    assert run_cli(monkeypatch, *command) == 0
    assert "0 files written; 3 scans" in capsys.readouterr().out
    write_dicom(folder / "dic", values[:, ::-1].copy(), affine)
    assert run_cli(monkeypatch, *command) == 0
    assert "1 files written; 2 scans" in capsys.readouterr().out


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


def _turned(image: nib.Nifti1Image, codes: str) -> nib.Nifti1Image:
    """The same anatomy with axes that point elsewhere."""
    turns = nib.orientations
    here = turns.io_orientation(image.affine)
    return image.as_reoriented(turns.ornt_transform(here, turns.axcodes2ornt(codes)))


ORIENTATIONS = ("RAS", "LPS", "SAR", "PIR")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One scan, stored in several orientations."""
    folder = tmp_path_factory.mktemp("scans")
    affine = oblique((1.5, 1.5, 10.0))
    image = _turned(nib.Nifti1Image(scan((40, 48, 3), 3), affine), "RAS")
    for codes in ORIENTATIONS:
        nib.save(_turned(image, codes), folder / f"{codes}.nii.gz")
    return folder


@pytest.fixture(scope="module")
def wild(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights: after one epoch the trained one says background everywhere."""
    folder = tmp_path_factory.mktemp("wild") / "run"
    shutil.copytree(run, folder)
    content = torch.load(run / "best.pt", weights_only=True)
    random = torch.Generator().manual_seed(0)
    for name, values in content["model"].items():
        if values.ndim > 1:
            values.normal_(generator=random)
            if values.shape[1] > 1:  # no class wins by its mean weight alone
                values -= values.mean(1, keepdim=True)
        elif name.endswith("bias"):
            values.zero_()
    torch.save(content, folder / "best.pt")
    return folder


def test_the_orientation_of_the_file_does_not_matter(
    wild: Path, scans: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    found = predict_volumes([wild], scans, tmp_path, warn=said.append, flips="w")
    assert len(found.written) == 16
    assert unusual(said) == []
    for what in ("labels", "probs", "confidence", "entropy"):
        expected = nib.load(tmp_path / f"RAS_{what}.nii.gz")
        values = np.asarray(expected.dataobj)
        # A constant would be the same in all orientations.
        assert values.std() > 0
        for codes in ORIENTATIONS:
            own, source = (
                nib.load(tmp_path / f"{codes}_{what}.nii.gz"),
                nib.load(scans / f"{codes}.nii.gz"),
            )
            assert own.shape[:3] == source.shape
            np.testing.assert_allclose(own.affine, source.affine, atol=1e-5)
            assert nib.aff2axcodes(own.affine) == tuple(codes)
            np.testing.assert_array_equal(np.asarray(_turned(own, "RAS").dataobj), values)


def _copy_with(run: Path, folder: Path, space: object) -> Path:
    """A copy of the run with another `space` in run.json."""
    shutil.copytree(run, folder)
    about = json.loads((run / "run.json").read_text())
    about["space"] = space
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def test_orientations_that_are_not_known(run: Path, scans: Path, tmp_path: Path) -> None:
    space = json.loads((run / "run.json").read_text())["space"]
    assert set(space["orientations"]) == {"RAS"}
    assert np.allclose(space["spacing_mm"][0], [10, 10])
    folder = tmp_path / "in"
    folder.mkdir()
    for codes in ("RAS", "LPS"):
        shutil.copy(scans / f"{codes}.nii.gz", folder)

    def probs(trained: Path, out: str) -> tuple[list[np.ndarray], list[str]]:
        said: list[str] = []
        predict_volumes([trained], folder, tmp_path / out, outputs=["probs"], warn=said.append)
        maps = [nib.load(tmp_path / out / f"{c}_probs.nii.gz") for c in ("RAS", "LPS")]
        return [np.asarray(_turned(image, "RAS").dataobj) for image in maps], said

    def same(pair: list[np.ndarray]) -> bool:
        return np.array_equal(*pair)

    turned, said = probs(run, "out")
    assert same(turned)
    assert unusual(said) == []
    for name, kinds, words in (
        ("mixed", {"RAS": 2, "LAS": 1}, r"mixed orientations \(RAS, LAS\)"),
        ("placeholders", {"unknown": 3}, "affines of the training set are placeholders"),
    ):
        other = {**space, "orientations": kinds}
        stored, said = probs(_copy_with(run, tmp_path / name, other), f"out_{name}")
        assert not same(stored)
        np.testing.assert_array_equal(stored[0], turned[0])
        (line,) = unusual(said)
        assert re.search(words, line)
    # Trained on LPS, a scan in LPS is what it was before as RAS on RAS, so neither is as above.
    lps = {**space, "orientations": {"LPS": 3}}
    other_way, said = probs(_copy_with(run, tmp_path / "lps", lps), "out_lps")
    assert same(other_way)
    assert not np.array_equal(other_way[0], turned[0])
    damaged = _copy_with(run, tmp_path / "damaged", {"orientations": 3})
    with pytest.raises(ValueError, match=r"run\.json: .*`space\.orientations`"):
        predict_volumes([damaged], folder, tmp_path / "none")


def test_unusual_spacing_and_placeholders_are_warned_about(run: Path, tmp_path: Path) -> None:
    image = scan((40, 48, 3), 3)
    # What counts is the grid of the network: slices are resized from 40 x 48 to 224 x 224.
    save(tmp_path / "in" / "fine.nii.gz", image, np.diag([1.6, 1.4, 14.0, 1]))
    save(tmp_path / "in" / "thick.nii.gz", image, np.diag([1.5, 1.5, 16.0, 1]))
    save(tmp_path / "in" / "small.nii.gz", image, np.diag([0.9, 1.5, 10.0, 1]))
    blank = nib.Nifti1Image(image, np.eye(4))
    blank.header["pixdim"][1:4] = (1.5, 1.5, 10.0)
    nib.save(blank, tmp_path / "in" / "blank.nii.gz")
    said: list[str] = []
    predict_volumes([run], tmp_path / "in", tmp_path / "out", outputs=["labels"], warn=said.append)
    said = unusual(said)
    assert [Path(line.split(":")[0]).name.split(".")[0] for line in said] == [
        "blank", "small", "thick",
    ]  # fmt: skip
    assert "placeholder" in said[0]
    assert "along x, but" in said[1]
    assert "spacing 16 mm along z, but 10 mm in training" in said[2]


def test_maps_must_not_be_written_among_the_images(
    run: Path, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(scans, tmp_path / "in")
    before = sorted((tmp_path / "in").iterdir())
    monkeypatch.chdir(tmp_path)
    for out in ("in", "in/../in"):
        with pytest.raises(ValueError, match="--out must not be the input folder"):
            predict_volumes([run], tmp_path / "in", out, overwrite=True)
    assert sorted((tmp_path / "in").iterdir()) == before
    # Folders of patients: a new folder beside them would be a patient the next time.
    (tmp_path / "all").mkdir()
    (tmp_path / "in").rename(tmp_path / "all" / "patient")
    with pytest.raises(ValueError, match="--out must not be the input folder"):
        predict_volumes([run], tmp_path / "all", "all/maps")
    # Below a folder of images no others are searched.
    source, out = tmp_path / "all" / "patient", tmp_path / "all" / "patient" / "maps"
    for count in (4, 0):
        assert len(predict_volumes([run], source, out, outputs=["labels"]).written) == count


def test_a_damaged_scan_is_skipped(
    run: Path,
    scans: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        shutil.copy(scans / "RAS.nii.gz", folder / f"{name}.nii.gz")
    whole = (folder / "b.nii.gz").read_bytes()
    (folder / "b.nii.gz").write_bytes(b"nothing")
    # Its header is right: only the voxels tell.
    (folder / "c.nii.gz").write_bytes(whole[: len(whole) // 2])
    command = ("predict", run, "--input", folder, "--out", out, "--output", "labels")
    assert run_cli(monkeypatch, *command) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["skipped", "skipped"]
    assert "b.nii.gz: is not a NIfTI file" in said[0]
    assert "c.nii.gz: is truncated or damaged" in said[1]
    maps = ["a_labels.nii.gz", "d_labels.nii.gz"]
    assert sorted(path.name for path in out.glob("*.nii.gz")) == maps
    times = {name: (out / name).stat().st_mtime_ns for name in maps}
    for name in ("b", "c"):
        (folder / f"{name}.nii.gz").write_bytes(whole)
    assert run_cli(monkeypatch, *command) == 0
    assert "2 files written; 2 scans were predicted before" in capsys.readouterr().out
    assert {name: (out / name).stat().st_mtime_ns for name in maps} == times
    assert len(list(out.glob("*.nii.gz"))) == 4
    # A scan that changed is predicted again, one whose map is gone too; --overwrite means all.
    save(folder / "a.nii.gz", scan((40, 48, 3), 8), np.diag([1.5, 1.5, 10, 1]))
    (out / "b_labels.nii.gz").unlink()
    found = predict_volumes([run], folder, out, outputs=["labels"])
    assert [path.name[0] for path in found.written] == ["a", "b"]
    found = predict_volumes([run], folder, out, outputs=["labels"], overwrite=True)
    assert (len(found.written), found.kept) == (4, ())


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_number_of_jobs_changes_nothing(
    run: Path, wild: Path, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs, so that there is a table; a damaged scan is skipped in every process."""
    shutil.copytree(scans, tmp_path / "in")
    whole = (scans / "LPS.nii.gz").read_bytes()
    (tmp_path / "in" / "LPS.nii.gz").write_bytes(whole[: len(whole) // 2])
    found = {}
    for jobs in (1, 2):
        command = ("predict", run, wild, "--input", tmp_path / "in", "--jobs", jobs)
        assert run_cli(monkeypatch, *command, "--out", tmp_path / str(jobs), "--to", "both") == 2
        found[jobs] = _content(tmp_path / str(jobs))
    # Five maps and a .pkl of each, predict.json, dataset.json, the table.
    assert len(found[1]) == 3 * 6 + 3
    assert found[1] == found[2]
    names = tuple(open_run(run).data_info.classes[k] for k in range(4))
    assert class_names(tmp_path / "1", 4) == names != class_names(tmp_path, 4)


@pytest.mark.slow
def test_ray_changes_nothing(
    run: Path, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    ray = ("--launcher", "ray", "--address", "local", "--jobs", 2)
    for name, options in (("one", ()), ("ray", ray)):
        command = ("predict", run, "--input", scans, "--out", tmp_path / name, *options)
        assert run_cli(monkeypatch, *command) == 0
        # On the original grid cases are read again from their source.
        command = ("evaluate", run, "--out", tmp_path / f"{name}_evaluation", *options)
        assert run_cli(monkeypatch, *command, "--grid", "original") == 0
    assert len(_content(tmp_path / "one")) == 4 * 4 + 2
    assert _content(tmp_path / "one") == _content(tmp_path / "ray")
    one, two = (_content(tmp_path / f"{name}_evaluation") for name in ("one", "ray"))
    assert one.keys() == two.keys()
    different = [name for name in one if one[name] != two[name]]
    assert different == ["evaluation.json"]  # the time it took


def test_maps_of_unknown_origin_are_refused(run: Path, scans: Path, tmp_path: Path) -> None:
    predict_volumes([run], scans, tmp_path, outputs=["labels"])
    # Other maps of the same scans, made in another way, do not make the labels theirs.
    predict_volumes([run], scans, tmp_path, outputs=["confidence"], flips="w")
    with pytest.raises(ValueError, match=r"LPS_labels\.nii\.gz: exists already, predicted with"):
        predict_volumes([run], scans, tmp_path, outputs=["labels"], flips="w")
    assert len(predict_volumes([run], scans, tmp_path, outputs=["labels"]).kept) == 4
    for content in ("", "[]", '{"settings": {}, "maps": {"RAS_labels.nii.gz": 1}}'):
        (tmp_path / "predict.json").write_text(content)
        with pytest.raises(ValueError, match=r"labels\.nii\.gz: exists already; pass --over"):
            predict_volumes([run], scans, tmp_path, outputs=["labels"])


def test_an_interrupted_prediction_continues(
    run: Path, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between two maps of one scan."""
    count = 0

    def stop_at_the_sixth(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        write_nifti(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("segcal.evaluation.predict_nifti.write_nifti", stop_at_the_sixth)
        with pytest.raises(KeyboardInterrupt):
            predict_volumes([run], scans, tmp_path)
    found = predict_volumes([run], scans, tmp_path)
    assert (len(found.kept), len(found.written)) == (1, 12)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--flips", "q"), "`--flips`"),
        (("--average", "foo"), "`--average`"),
        (("--checkpoint", "worst"), "`--checkpoint` to be one of 'best', 'last'"),
        (("--output", "prob"), "`--output`"),
        (("--input", "nowhere"), "nowhere: does not exist; check the path given to --input"),
    ],
)
def test_invalid_options_write_nothing(
    run: Path,
    scans: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: tuple[str, str],
    words: str,
) -> None:
    command = ("predict", run, "--input", scans, "--out", tmp_path / "out", *option)
    assert run_cli(monkeypatch, *command) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        predict_volumes([run], scans, tmp_path / "file")


@pytest.mark.slow
def test_3d_networks_slide(tmp_path: Path) -> None:
    from helpers.runs import phantom

    data = phantom(tmp_path / "data", cases=10, size=32, slices=8)
    config = settings(data, epochs=1, data={"mode": "3d", "patch_size": [4, 16, 16]}, batch_size=2)
    train(config, tmp_path / "run")
    found = evaluate_run(tmp_path / "run")
    assert len(found.info.case_names) == 2
    assert found.means()["dsc"] >= 0


def test_probabilities_as_npz(run: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), tmp_path / "in" / "x.nii.gz")
    done = predict_volumes(
        [run], tmp_path / "in", tmp_path / "out", outputs=["probs", "labels"], to="both"
    )
    assert sorted(p.name for p in done.written) == ["x.npz", "x_labels.nii.gz", "x_probs.nii.gz"]
    (tmp_path / "labels").mkdir()
    shutil.copy(tmp_path / "out" / "x_labels.nii.gz", tmp_path / "labels" / "x.nii.gz")
    (pair,) = find_pairs(tmp_path / "out", tmp_path / "labels")  # checks the position
    assert pair.softmax.format == "nnunet"
    image = nib.load(tmp_path / "out" / "x_probs.nii.gz")
    np.testing.assert_array_equal(pair.load().values, np.asarray(image.dataobj).T)
    assert pair.softmax.spacing_mm == pytest.approx(image.header.get_zooms()[2::-1])
    again = predict_volumes(
        [run], tmp_path / "in", tmp_path / "out", outputs=["probs", "labels"], to="both"
    )
    assert again.kept == ("x",)
