"""`segcal apply` on files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import softmax
from helpers.softmax_files import (
    write_labels,
    write_predictions,
)
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.evaluation import calibration_of, seen_cases
from segcal.evaluation.predict_manifest import seen_maps
from segcal.posthoc import make_calibrator
from segcal.predictions import find_pairs


def run(*arguments: object) -> Any:
    """A command in this process; mistakes come back as the exception that main() prints."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels"))


def everything(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_overwrite(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file, out = tmp_path / "t.json", tmp_path / "out"
    base = ("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    assert run(*base).exit_code == 0
    again = run(*base)
    assert "t.json: exists already; pass --overwrite" in str(again.exception)
    assert run(*base, "--overwrite").exit_code == 0

    apply = ("apply", file, "--probs", probs, "--out", out)
    assert run(*apply).exit_code == 0
    assert "exists already" in str(run(*apply).exception)
    assert run(*apply, "--overwrite").exit_code == 0
    same = run("apply", file, "--probs", probs, "--out", probs, "--overwrite")
    assert "is the input folder" in str(same.exception)


def test_existing_outputs_are_found_before_any_work(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "nnunet")
    file, out = tmp_path / "t.json", tmp_path / "out"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    out.mkdir()
    (out / "case_005.pkl").write_text("mine")
    done = run("apply", file, "--probs", probs, "--out", out)
    assert "case_005.pkl: exists already; pass --overwrite" in str(done.exception)
    assert everything(out) == {"case_005.pkl": b"mine"}
    done = run("calibrate", "--probs", probs, "--labels", labels, "--out", out, "--overwrite")
    assert "is a folder; choose another --out" in str(done.exception)


def test_apply_writes_all_cases_or_none(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file, out = tmp_path / "t.json", tmp_path / "out"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    whole = np.load(probs / "case_005.npy")
    np.save(probs / "case_005.npy", np.full_like(whole, np.nan))
    done = run("apply", file, "--probs", probs, "--out", out)
    assert "case_005.npy: Expected probabilities to be finite" in str(done.exception)
    assert not out.exists()
    np.save(probs / "case_005.npy", whole)
    assert run("apply", file, "--probs", probs, "--out", out).exit_code == 0
    assert sorted(everything(out)) == sorted([*everything(probs), "predict.json"])


def test_apply_keeps_other_arrays_of_an_npz(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npz")
    note = np.array(["from scanner 3"])
    with np.load(probs / "case_000.npz") as old:
        np.savez(probs / "case_000.npz", probs=old["probs"], note=note)
    file, out = tmp_path / "t.json", tmp_path / "out"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    assert run("apply", file, "--probs", probs, "--out", out).exit_code == 0
    with np.load(out / "case_000.npz") as new, np.load(probs / "case_000.npz") as old:
        assert sorted(new.files) == ["note", "probs"]
        assert new["note"] == note
        assert np.abs(new["probs"] - old["probs"]).max() > 0.1


def test_other_networks_and_damaged_files_are_rejected(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file = tmp_path / "t.json"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    other = tmp_path / "other"
    other.mkdir()
    np.save(other / "a.npy", softmax(np.random.default_rng(0).normal(size=(4, 5, 6, 7))))
    done = run("apply", file, "--probs", other, "--out", tmp_path / "out")
    assert "has 4 classes, but the calibrator was fitted on 3" in str(done.exception)
    done = run(
        "apply", file, "--probs", write_labels(tmp_path / "maps", 1), "--out", tmp_path / "out"
    )
    assert "label map" in str(done.exception)
    done = run("apply", file, "--logits", probs, "--out", tmp_path / "out")
    assert "case_000.npy: Expected argument `logits` to be logits" in str(done.exception)
    file.write_text(file.read_text()[:50])
    done = run("apply", file, "--probs", probs, "--out", tmp_path / "out")
    assert str(done.exception).startswith(f"{file}: is damaged or not a calibrator of segcal")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["nifti", "npz", "both"])
@pytest.mark.parametrize("form", ["nnunet", "nifti", "classes"])
def test_other_formats(tmp_path: Path, labels: Path, form: str, to: str) -> None:
    """Every form can be written as every other one, at the same place."""
    jobs = ("--jobs", 2) if (form, to) == ("nnunet", "both") else ()
    folder = write_predictions(tmp_path / "probs", form, 2)
    small = write_labels(tmp_path / "labels", 2)
    file = make_calibrator("temperature").fit(
        [(p.load().values, p.load().target) for p in find_pairs(folder, small)], from_probs=True
    )
    file.save(tmp_path / "t.json")
    for out, options in (("as", ()), ("to", ("--to", to, *jobs))):
        base = ("apply", tmp_path / "t.json", "--probs", folder, "--out", tmp_path / out)
        done = run(*base, *options)
        assert done.exit_code == 0, done.output
    written = everything(tmp_path / "to")
    is_nifti = form != "nnunet"
    if (to == "nifti") == is_nifti and to != "both":
        assert sorted(written) == sorted(everything(tmp_path / "as"))
    assert any(name.endswith(".nii.gz") for name in written) == (to != "npz")
    assert {"case_000.npz", "case_000.pkl"} <= {*written} or to == "nifti"
    if to == "both":  # find_pairs reads the .npz files; read the others too
        (tmp_path / "nii").mkdir()
        for path in (tmp_path / "to").glob("*.nii.gz"):
            path.rename(tmp_path / "nii" / path.name)
    expected = find_pairs(tmp_path / "as", small)
    for place in ["to", *(["nii"] if to == "both" else [])]:
        found = find_pairs(tmp_path / place, small)  # checks the position against the labels
        for one, two in zip(expected, found, strict=True):
            assert one.load().spacing_mm == pytest.approx(two.load().spacing_mm)
            np.testing.assert_array_equal(one.load().values, two.load().values)
            np.testing.assert_allclose(
                two.softmax.header().affine, one.softmax.header().affine, atol=1e-5
            )


def test_plain_arrays_have_no_position_for_nifti(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file = tmp_path / "t.json"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    base = ("apply", file, "--probs", probs, "--out", tmp_path / "out", "--to")
    assert "contains no position of its voxels" in str(run(*base, "nifti").exception)
    assert not (tmp_path / "out").exists()
    assert run(*base, "npz").exit_code == 0
    assert len(list((tmp_path / "out").glob("*.npz"))) == 6


def test_a_method_that_uses_distances_needs_a_voxel_size(tmp_path: Path, labels: Path) -> None:
    """The fit has it from the labels, which `apply` does not read."""
    probs = write_predictions(tmp_path / "probs", "npy")
    placed = write_predictions(tmp_path / "placed", "nnunet")
    file, out = tmp_path / "m.json", tmp_path / "out"
    fit = ("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    assert run(*fit, "--method", "mixture").exit_code == 0
    error = run("apply", file, "--probs", probs, "--out", out).exception
    assert isinstance(error, PathError)
    assert error.path == probs / "case_000.npy"
    assert "voxel size" in str(error)
    assert "mixture" in str(error)
    assert not out.exists()
    assert run("apply", file, "--probs", placed, "--out", out).exit_code == 0
    found = np.load(out / "case_000.npz")["probabilities"]
    # Any image on the grid of the case has its voxel size.
    plain = ("apply", file, "--probs", probs, "--images", labels, "--overwrite", "--out", out)
    assert run(*plain).exit_code == 0
    np.testing.assert_allclose(np.load(out / "case_000.npy"), found, atol=1e-6)
    refused = run(*plain, "--axes", "xyz")
    assert refused.exit_code != 0
    assert "both must have the same grid" in f"{refused.output} {refused.exception}"


def test_calibrated_maps_keep_what_is_known_of_them(tmp_path: Path, labels: Path) -> None:
    """predict.json: scans of the training and of the fit, and calibrators one after another."""
    probs, some = write_predictions(tmp_path / "probs", "npy"), tmp_path / "some"
    names = sorted(path.stem for path in probs.glob("*.npy"))
    some.mkdir()
    for name in names[:3]:
        (some / f"{name}.npy").write_bytes((probs / f"{name}.npy").read_bytes())
    entry = {"settings": "k", "scan": [], "seen": None}
    maps = {
        f"{name}.npy": {**entry, "seen": "train" if name == names[-1] else None} for name in names
    }
    content = {"settings": {"k": {"checkpoints": ["x"]}}, "maps": maps}
    (probs / "predict.json").write_text(json.dumps(content))
    file, out, twice = tmp_path / "t.json", tmp_path / "out", tmp_path / "twice"
    run("calibrate", "--probs", some, "--labels", labels, "--out", file, "--folds", 0)
    assert calibration_of(probs) == ""
    assert "already" not in run("apply", file, "--probs", probs, "--out", out).output
    assert set(seen_cases(find_pairs(out, labels))) == {*names[:3], names[-1]}
    assert seen_cases(find_pairs(out, labels), ["train"]) == [names[-1]]
    once = calibration_of(out)
    assert once.startswith("temperature ")
    again = run("apply", file, "--probs", out, "--out", twice)
    assert f"is calibrated already ({once})" in again.output
    assert calibration_of(twice) == f"{once} after {once}"
    fitted = run("calibrate", "--probs", out, "--labels", labels, "--out", tmp_path / "u.json",
                 "--folds", 0)  # fmt: skip
    assert f"is calibrated already ({once})" in fitted.output


def test_auto_that_chose_none_leaves_maps_uncalibrated(tmp_path: Path, labels: Path) -> None:
    probs, file = write_predictions(tmp_path / "probs", "npy"), tmp_path / "c.json"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--method", "auto")
    content = json.loads(file.read_text())
    content |= {"method": "temperature", "params": {"temperature": 1.0}, "options": {}}
    for chosen, known in (("temperature", True), ("none", False)):
        content["about"]["auto"]["chosen"] = chosen
        file.write_text(json.dumps(content))
        out = tmp_path / chosen
        assert run("apply", file, "--probs", probs, "--out", out).exit_code == 0
        assert calibration_of(out).startswith("temperature") == known
        assert len(seen_cases(find_pairs(out, labels))) == 6


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"k": [1]}, "k"),
        ({"k": {"calibrator": "temperature"}}, "k"),
        ({"k": {"calibrator": {"temperature": 2.0}}}, "k"),
        ({"k": {"source": 5}}, "k"),
        ({}, ["k"]),
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, settings: Any, key: Any) -> None:
    content = {"settings": settings, "maps": {"a.npy": {"settings": key, "seen": "val"}}}
    (tmp_path / "predict.json").write_text(json.dumps(content))
    assert calibration_of(tmp_path) == ""
    assert seen_maps(tmp_path) == set()


def test_maps_of_two_calibrators_in_one_folder(tmp_path: Path, labels: Path) -> None:
    probs, out = write_predictions(tmp_path / "probs", "npy"), tmp_path / "out"
    first, *others = sorted(probs.glob("*.npy"))
    for number, temperature in enumerate((2.0, 3.0)):
        part = tmp_path / f"part{number}"
        part.mkdir()
        for path in [first] if number == 0 else others:
            (part / path.name).write_bytes(path.read_bytes())
        file = tmp_path / f"{number}.json"
        fit = ("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
        run(*fit)
        content = json.loads(file.read_text())
        content["params"]["temperature"] = temperature
        file.write_text(json.dumps(content))
        run("apply", file, "--probs", part, "--out", out)
    found = calibration_of(out).split(", ")
    assert len(found) == 2
    maps = json.loads((out / "predict.json").read_text())["maps"]
    assert len(maps) == 1 + len(others)
