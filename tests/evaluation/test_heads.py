"""Overlapping regions with sigmoid outputs: audit, calibration and application to files."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import blobs
from helpers.softmax_files import (
    REGIONS,
    SPACING_ZYX,
    region_probs,
    write_labels,
    write_nifti,
    write_predictions,
    write_regions,
)
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.evaluation import audit_predictions, fit_pairs
from segcal.metrics import evaluate_heads, voxel_statistics
from segcal.posthoc import load_calibrator
from segcal.predictions import find_pairs
from segcal.stats import to_frame
from segcal.study import read_study


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heads")
    write_labels(root / "labels")
    write_regions(root / "sure")
    write_regions(root / "good", too_sure=1.0, logits=True, declare=False)
    return root


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_audit_of_nnunet_regions(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    text = run("audit", "--probs", files / "sure", "--labels", files / "labels", "--out", out)
    assert "sure, whole: when it says 95 to 99 %" in text
    study = read_study(out)
    (dataset,) = study.datasets.values()
    assert dataset.labels == ("background", "whole", "right")
    assert dataset.structures == ("whole", "right")
    wanted = to_frame(
        evaluate_heads(
            region_probs(1), blobs(1)[1], SPACING_ZYX, heads=REGIONS, case="case_001"
        ).rows
    )
    merged = wanted.merge(study.table, on=["case", "region", "metric", "label"], how="left")
    assert len(merged) == len(wanted) > 150
    np.testing.assert_allclose(merged["value_x"], merged["value_y"], atol=1e-5)
    page = (out / "report" / "index.html").read_text()
    assert "class ECE" in page
    assert (out / "ranks.csv").is_file()


def test_heads_on_the_command_line(files: Path, tmp_path: Path) -> None:
    found = {}
    for name, logits in (("sure", False), ("good", True)):
        audited = audit_predictions(
            {name: files / name}, files / "labels", tmp_path / name, heads=REGIONS, logits=logits
        )
        found[name] = audited.networks[name].means("predicted")
    assert found["sure"]["signed_gap"] > 0.1 > abs(found["good"]["signed_gap"])
    with pytest.raises(PathError, match=r"has 2 maps, but --heads names 1 regions \(whole\)"):
        find_pairs(files / "good", files / "labels", heads={"whole": (1, 2)})


@pytest.mark.parametrize("form", ["npy", "3-D", "4-D"])
def test_one_map_is_the_probability_of_one_region(tmp_path: Path, form: str) -> None:
    labels, folder = write_labels(tmp_path / "labels", 2), tmp_path / "probs"
    folder.mkdir()
    for i in range(2):
        probs = region_probs(i)[:1].astype(np.float32)
        if form == "npy":
            np.save(folder / f"case_{i:03d}.npy", probs)
        else:
            write_nifti(folder / f"case_{i:03d}_probs.nii.gz", probs if form == "4-D" else probs[0])
    with pytest.raises(PathError, match="has one map only; set --heads"):
        find_pairs(folder, labels)
    audited = audit_predictions({"net": folder}, labels, tmp_path / "out", heads={"organs": (1, 2)})
    assert audited.networks["net"].info.structures == ("organs",)


def test_maps_of_one_region_are_numbered_cases_without_labels(tmp_path: Path) -> None:
    """case_000, case_001, … beside labels of these names, and later alone."""
    labels, probs = write_labels(tmp_path / "labels", 3), tmp_path / "probs"
    for i in range(3):
        write_nifti(probs / f"case_{i:03d}.nii.gz", region_probs(i)[0].astype(np.float32))
    base = ("--probs", probs, "--labels", labels, "--heads", "organs=1+2")
    run("calibrate", *base, "--out", tmp_path / "cal.json", "--folds", 0)
    text = run("apply", tmp_path / "cal.json", "--probs", probs, "--out", tmp_path / "out")
    assert "3 cases" in text
    run("assure", "fit", *base, "--out", tmp_path / "assurance.json")
    file = tmp_path / "assurance.json"
    run("assure", "apply", file, "--probs", probs, "--out", tmp_path / "volumes")
    rows = (tmp_path / "volumes" / "volumes.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 3


def test_networks_with_other_outputs_are_not_compared(files: Path, tmp_path: Path) -> None:
    other = write_predictions(tmp_path / "softmax", "nnunet")
    with pytest.raises(ValueError, match="'a' has whole, right and 'b' 3"):
        audit_predictions({"a": files / "sure", "b": other}, files / "labels", tmp_path / "out")


@pytest.mark.parametrize("shared", [False, True])
def test_calibrate_and_apply(files: Path, tmp_path: Path, shared: bool) -> None:
    base = ("--probs", files / "sure", "--labels", files / "labels")
    file, out = tmp_path / "cal.json", tmp_path / "calibrated"
    text = run("calibrate", *base, "--out", file, "--folds", 2, *(["--shared"] if shared else []))
    assert "Yes, calibration helped" in text
    params = load_calibrator(file).params()
    temperatures = [params[name]["temperature"] for name in REGIONS]
    assert all(2 < each < 4 for each in temperatures)  # the logits were multiplied by 3
    assert (len(set(temperatures)) == 1) == shared
    assert "0 of 13,440 voxels changed" in run(
        "apply", file, "--probs", files / "sure", "--out", out
    )
    # The calibrated files are recognized as regions; they are better, with the same masks.
    means = [
        audit_predictions({"net": folder}, files / "labels", tmp_path / f"audit {folder.name}")
        .networks["net"]
        .means("predicted_boundary")
        for folder in (files / "sure", out)
    ]
    assert means[1]["nll"] < 0.8 * means[0]["nll"]
    assert means[1]["dsc"] == means[0]["dsc"]


def test_auto_compares_methods_by_the_mean_over_heads(files: Path) -> None:
    pairs = find_pairs(files / "sure", files / "labels")
    fitted = fit_pairs(pairs, "auto", from_probs=True, folds=2)
    assert fitted.choice is not None
    assert fitted.choice.method != "none"
    scores = [
        voxel_statistics(
            np.stack([1 - p, p]), np.isin(blobs(i)[1], labels).astype(int), 2, batched=False
        ).scores.nll()
        for i in range(6)
        for p, labels in zip(region_probs(i), REGIONS.values(), strict=True)
    ]
    assert fitted.choice.nll["none"][0] == pytest.approx(np.mean(scores), rel=1e-4)


@pytest.mark.parametrize("method", ["mixture", "auto"])
def test_every_region_is_calibrated_by_mixture(files: Path, tmp_path: Path, method: str) -> None:
    """Regions are problems of two classes; the file that was written can be applied."""
    file = tmp_path / "m.json"
    run("calibrate", "--probs", files / "sure", "--labels", files / "labels", "--out", file,
        "--method", method)  # fmt: skip
    text = run("apply", file, "--probs", files / "sure", "--out", tmp_path / "out")
    assert "0 of" in text
    before, after = (np.load(p / "case_001.npz") for p in (files / "sure", tmp_path / "out"))
    name = before.files[0]
    assert not np.allclose(before[name], after[name], atol=0.01)
