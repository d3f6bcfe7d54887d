"""`segcal nnunet calibrate` on folders as nnU-Net writes them, through the command line."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import blobs, softmax
from helpers.softmax_files import write_labels, write_nifti, write_prediction, write_regions
from segcal.cli import app
from segcal.evaluation.predict_manifest import seen_maps
from segcal.posthoc import load_calibrator

DATASET = "Dataset004_Toy"
NAMES = [f"case_{i:03d}" for i in range(6)]


def put(folder: Path, cases: range | list[int], too_sure: float = 3.0, seed: int = 0) -> Path:
    """Predictions of one fold's network, with the other files that nnU-Net writes."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in cases:
        logits = blobs(i, too_sure=too_sure)[0]
        noise = np.random.default_rng([seed, i]).normal(0, 0.5 * seed, logits.shape)
        probs = softmax(logits + noise).astype(np.float32)
        write_prediction(folder, f"case_{i:03d}", "nnunet", probs)
    return folder


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folds of three held-out cases each."""
    folder = tmp_path / "nnUNet_results" / DATASET / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    put(folder / "fold_0" / "validation", range(3))
    put(folder / "fold_1" / "validation", range(3, 6))
    write_dataset(folder)
    write_labels(tmp_path / "nnUNet_preprocessed" / DATASET / "gt_segmentations")
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "nnUNet_preprocessed"))
    monkeypatch.delenv("nnUNet_raw", raising=False)
    return folder


def write_dataset(folder: Path, **labels: Any) -> None:
    content = {"labels": {"background": 0, "a": 1, "b": 2, **labels}, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(content))


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["nnunet", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def rejected(match: str, *arguments: object) -> None:
    with pytest.raises(ValueError, match=match):
        CliRunner().invoke(app, ["nnunet", *map(str, arguments)], catch_exceptions=False)


def probs_in(folder: Path, name: str) -> Any:
    return np.load(folder / f"{name}.npz")["probabilities"]


def test_fit_on_the_folds_and_apply(results: Path, tmp_path: Path) -> None:
    predicted = put(tmp_path / "predicted", range(6, 9))
    (predicted / "plans.json").write_text("{}")
    out = tmp_path / "calibrated"
    output = run("calibrate", results, "--predictions", predicted, "--out", out)
    # The logits are multiplied by three, so the best temperature is about three.
    fitted = load_calibrator(results / "segcal_temperature.json")
    assert fitted.temperature == pytest.approx(3.0, rel=0.1)
    assert "temperature fitted on 6 cases" in output
    assert "Yes, calibration helped: on held-out cases, region all, ECE fell" in output
    assert "3 cases, 0 of" in output
    assert fitted.about["cases"] == NAMES
    for name in ("case_006", "case_007", "case_008"):
        before, after = probs_in(predicted, name), probs_in(out, name)
        np.testing.assert_allclose(after, fitted.transform(before, from_probs=True), atol=1e-6)
        assert np.array_equal(before.argmax(0), after.argmax(0))
        assert (out / f"{name}.pkl").read_bytes() == (predicted / f"{name}.pkl").read_bytes()
        labels, theirs = (nib.load(f / f"{name}.nii.gz") for f in (out, predicted))
        assert np.array_equal(labels.get_fdata(), theirs.get_fdata())
        assert np.array_equal(labels.affine, theirs.affine)
    assert (out / "plans.json").is_file()  # nnUNetv2_ensemble wants it
    # The calibrator also applies to later predictions.
    again = tmp_path / "again"
    run("apply", results / "segcal_temperature.json", "--predictions", predicted, "--out", again)
    assert np.array_equal(probs_in(again, "case_006"), probs_in(out, "case_006"))


def test_folds_are_averaged(results: Path, tmp_path: Path) -> None:
    folders = [put(tmp_path / f"p{seed}", [6], seed=seed) for seed in (1, 2)]
    both = [part for folder in folders for part in ("--predictions", folder)]
    output = run("calibrate", results, *both, "--out", tmp_path / "probs")
    assert "average of 2 folders (probs)" in output
    fitted = load_calibrator(results / "segcal_temperature.json")
    each = [probs_in(folder, "case_006").astype(np.float64) for folder in folders]
    expected = np.mean([fitted.transform(one, from_probs=True) for one in each], axis=0)
    np.testing.assert_allclose(probs_in(tmp_path / "probs", "case_006"), expected, atol=1e-5)
    run(
        "calibrate", results, *both, "--out", tmp_path / "logits", "--average", "logits",
        "--overwrite",
    )  # fmt: skip
    mean = softmax(np.mean([np.log(one) for one in each], axis=0))
    expected = fitted.transform(mean, from_probs=True)
    np.testing.assert_allclose(probs_in(tmp_path / "logits", "case_006"), expected, atol=1e-5)
    # Averaging can move labels; the label map is that of the averaged probabilities.
    labels = nib.load(tmp_path / "probs" / "case_006.nii.gz").get_fdata().T
    assert np.array_equal(labels, probs_in(tmp_path / "probs", "case_006").argmax(0))
    assert not np.array_equal(labels, each[0].argmax(0))


@pytest.mark.parametrize("average", ["probs", "logits"])
def test_close_classes_of_an_average_keep_their_order(
    results: Path, tmp_path: Path, average: str
) -> None:
    """A temperature brings them closer than float32 can represent."""
    run("calibrate", results)
    predicted = put(tmp_path / "predicted", [6])
    probs = np.full((3, 10, 16, 14), 0.4, np.float32)
    probs[0], probs[2] = 0.2, np.nextafter(np.float32(0.4), np.float32(1))
    np.savez_compressed(predicted / "case_006.npz", probabilities=probs)
    out = tmp_path / "calibrated"
    output = run(
        "apply", results / "segcal_temperature.json", "--predictions", predicted,
        "--predictions", predicted, "--out", out, "--average", average,
    )  # fmt: skip
    assert "0 of 2,240 voxels" in output
    assert (probs_in(out, "case_006").argmax(0) == 2).all()


def test_predictions_that_are_calibrated_already_are_reported(
    results: Path, tmp_path: Path
) -> None:
    predicted, once, twice = put(tmp_path / "p", [6]), tmp_path / "once", tmp_path / "twice"
    file = results / "segcal_temperature.json"
    output = run("calibrate", results, "--predictions", predicted, "--out", once)
    assert "calibrated twice" not in output
    output = run("apply", file, "--predictions", once, "--out", twice)
    assert f"{once}: is calibrated already (temperature " in output


def test_options_change_the_result(results: Path, tmp_path: Path) -> None:
    def fit(*options: object) -> Any:
        file = tmp_path / "c.json"
        output = run("calibrate", results, "--file", file, "--overwrite", *options)
        loaded = load_calibrator(file)
        return loaded, output

    base, _ = fit()
    assert fit("--fold", 1)[0].about["cases"] == NAMES[3:]
    assert fit("--method", "vector")[0].method == "vector"
    assert fit("--region", "foreground")[0].temperature != base.temperature
    assert "not cross-validated" in fit("--folds", 0)[1]
    assert fit("--folds", 3)[0].about["folds"] == 3
    one_patient = ("calibrate", results, "--file", tmp_path / "p.json", "--patient", "case_0")
    rejected("two cases of different patients", *one_patient)
    assert fit("--seed", 1)[0].about["seed"] == 1
    labels = tmp_path / "others"
    shutil.copytree(tmp_path / "nnUNet_preprocessed" / DATASET / "gt_segmentations", labels)
    for name in NAMES:  # labels moved by two voxels: the network looks more over-confident
        write_nifti(labels / f"{name}.nii.gz", np.roll(blobs(int(name[-1]))[1], 2, 1))
    assert fit("--labels", labels)[0].temperature > 1.2 * base.temperature


def test_scans_that_look_like_those_of_one_patient_are_reported(
    results: Path, tmp_path: Path
) -> None:
    folds = sorted(results.glob("fold_*/validation"))
    labels = write_labels(tmp_path / "labels")
    for folder in (*folds, labels):  # two frames of three patients
        for path in sorted(folder.iterdir()):
            number = int(path.name[5:8])
            path.rename(folder / f"p{number // 2}_frame{number % 2}{path.name[8:]}")
    base = ("calibrate", results, "--labels", labels, "--folds", 2)
    output = run(*base)
    assert "p0_frame0 and p0_frame1" in output
    pattern = output.split("--patient '")[1].split("'")[0]
    again = run(*base, "--patient", pattern, "--overwrite")
    assert "p0_frame0 and p0_frame1" not in again
    fitted = load_calibrator(results / "segcal_temperature.json")
    assert fitted.about["patients"] == 3


def test_ignored_voxels_are_skipped(results: Path, tmp_path: Path) -> None:
    write_dataset(results, ignore=3)
    labels = tmp_path / "nnUNet_preprocessed" / DATASET / "gt_segmentations"
    voxels = 0
    for name in NAMES:
        target = blobs(int(name[-1]))[1]
        target[:5] = 3
        voxels += int((target != 3).sum())
        write_nifti(labels / f"{name}.nii.gz", target)
    run("calibrate", results)
    assert load_calibrator(results / "segcal_temperature.json").report.voxels == voxels


def test_labels_are_found_in_raw_too(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(
        tmp_path / "nnUNet_preprocessed" / DATASET / "gt_segmentations",
        tmp_path / "raw" / DATASET / "labelsTr",
    )
    rejected("set nnUNet_preprocessed, or give --labels FOLDER", "calibrate", results)
    monkeypatch.setenv("nnUNet_raw", str(tmp_path / "raw"))
    run("calibrate", results)


def test_invalid_input_is_named_and_nothing_is_written(results: Path, tmp_path: Path) -> None:
    calibrator = results / "segcal_temperature.json"
    predicted, out = put(tmp_path / "predicted", [6]), tmp_path / "out"
    pair = ("--predictions", predicted, "--out", out)
    rejected(
        "--predictions FOLDER and --out FOLDER must be given together",
        "calibrate",
        results,
        "--out",
        out,
    )
    rejected("together", "calibrate", results, "--predictions", predicted)
    rejected("is a folder of predictions", "calibrate", results,
            "--predictions", predicted, "--out", predicted)  # fmt: skip
    rejected("Did you mean 'vector'", "calibrate", results, "--method", "vectr")
    rejected("matrix needs logits", "calibrate", results, "--method", "matrix")
    rejected("has no dataset.json; give a trainer's folder", "calibrate", results.parent)
    rejected("fold_2/validation: contains no softmax", "calibrate", results, "--fold", 2)
    other = put(tmp_path / "other", [7])
    rejected("has other cases than .*case_006", "calibrate", results, *pair,
            "--predictions", other)  # fmt: skip
    (other / "case_007.pkl").unlink()
    rejected(
        "has no .pkl file next to it", "calibrate", results, "--predictions", other, "--out", out
    )
    put(results / "fold_1" / "validation", [0])
    rejected("contains case_000, which is also in .*; choose folds", "calibrate", results, *pair)
    assert not calibrator.exists()
    assert not out.exists()


def test_results_without_held_out_softmax(results: Path) -> None:
    for npz in results.glob("fold_*/validation/*.npz"):
        npz.unlink()
    rejected("contains no softmax .*; run nnUNetv2_train … --val --npz", "calibrate", results)
    shutil.rmtree(results / "fold_1")
    (results / "fold_0").rename(results / "fold_all")
    rejected(
        "no fold with held-out cases; fold_all was trained on every case", "calibrate", results
    )


def test_a_fold_without_softmax_is_skipped_unless_requested(results: Path) -> None:
    for npz in (results / "fold_1" / "validation").glob("*.npz"):
        npz.unlink()
    output = run("calibrate", results)
    assert "fold_1/validation: contains no softmax (.npz) and is skipped" in output
    assert load_calibrator(results / "segcal_temperature.json").about["cases"] == NAMES[:3]
    rejected("fold_1/validation", "calibrate", results, "--fold", 1, "--overwrite")


@pytest.mark.parametrize("average", ["probs", "logits"])
def test_regions(results: Path, tmp_path: Path, average: str) -> None:
    """Of a region-based training: a sigmoid of its own for each region, label maps by order."""
    for fold in (0, 1):
        shutil.rmtree(results / f"fold_{fold}")
    write_regions(results / "fold_0" / "validation", declare=False)
    one, two = (write_regions(tmp_path / f"x{too}", 2, too_sure=too) for too in (3, 2))
    shutil.copy(one / "dataset.json", results)
    out = tmp_path / "calibrated"
    text = run(
        "calibrate", results, "--predictions", one, "--predictions", two, "--out", out,
        "--average", average, "--folds", 2,
    )  # fmt: skip
    assert "whole: temperature 2." in text
    assert f"{out}: 2 cases" in text
    calibrator = load_calibrator(results / "segcal_temperature.json")
    values = [np.load(folder / "case_001.npz")["probabilities"] for folder in (one, two)]
    if average == "probs":
        wanted = np.mean([calibrator.transform(p, from_probs=True) for p in values], axis=0)
    else:
        wanted = calibrator.transform(np.mean([np.log(p / (1 - p)) for p in values], axis=0))
    found = np.load(out / "case_001.npz")["probabilities"]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    labels = nib.load(out / "case_001.nii.gz").get_fdata().T
    painted = np.where(found[1] > 0.5, 2, np.where(found[0] > 0.5, 1, 0))
    np.testing.assert_array_equal(labels, painted)
    assert {1, 2} <= set(np.unique(labels))


def test_overwrite(results: Path, tmp_path: Path) -> None:
    predicted, out = put(tmp_path / "predicted", [6]), tmp_path / "out"
    pair = ("--predictions", predicted, "--out", out)
    run("calibrate", results, *pair)
    rejected("segcal_temperature.json: exists already", "calibrate", results, *pair)
    file = ("--file", tmp_path / "new.json")
    rejected("case_006.npz: exists already", "calibrate", results, *pair, *file)
    assert not (tmp_path / "new.json").exists()
    run("calibrate", results, *pair, "--overwrite")
    wrong = put(tmp_path / "wrong", [6])
    np.savez(wrong / "case_006.npz", probabilities=np.full((2, 4, 4, 4), 0.5, np.float32))
    rejected("has 2 classes, but the calibrator was fitted on 3", "apply",
            results / "segcal_temperature.json", "--predictions", wrong, "--out", out,
            "--overwrite")  # fmt: skip


def test_predictions_in_parts_are_all_recorded(results: Path, tmp_path: Path) -> None:
    """The second call does not lose what is known of the maps of the first."""
    run("calibrate", results, "--folds", 0)
    for i in (5, 6):  # the calibrator was fitted on the first of them
        part = put(tmp_path / f"part{i}", [i])
        run("apply", results / "segcal_temperature.json", "--predictions", part, "--out",
            tmp_path / "out")  # fmt: skip
    maps = json.loads((tmp_path / "out" / "predict.json").read_text())["maps"]
    assert {"case_005.npz", "case_006.npz"} <= set(maps)
    assert seen_maps(tmp_path / "out", ["val"]) == {"case_005.npz", "case_005.pkl"}


def test_existing_outputs_are_found_before_any_work(results: Path, tmp_path: Path) -> None:
    """`--out labelsTr` must not replace the labels."""
    predicted, truth = put(tmp_path / "predicted", [6, 7]), tmp_path / "labelsTr"
    write_dataset(predicted)
    truth.mkdir()
    run("calibrate", results, "--folds", 0)
    calibrator = results / "segcal_temperature.json"
    for name in ("case_007.nii.gz", "case_007.pkl", "dataset.json"):
        (truth / name).write_text("mine")
        for command in (("apply", calibrator), ("calibrate", results, "--file", tmp_path / "n")):
            rejected(
                f"{name}: exists already", *command, "--predictions", predicted, "--out", truth
            )
        assert [(p.name, p.read_text()) for p in truth.iterdir()] == [(name, "mine")]
        (truth / name).unlink()


def test_half_precision_is_clipped_as_in_the_fit(results: Path, tmp_path: Path) -> None:
    predicted = put(tmp_path / "predicted", [6], too_sure=9.0)
    probs = probs_in(predicted, "case_006").astype(np.float16)
    assert (probs == 0).any()
    np.savez(predicted / "case_006.npz", probabilities=probs)
    run("calibrate", results, "--folds", 0)
    calibrator = results / "segcal_temperature.json"
    run("apply", calibrator, "--predictions", predicted, "--out", tmp_path / "out")
    wanted = load_calibrator(calibrator).transform(probs, from_probs=True)
    np.testing.assert_array_equal(probs_in(tmp_path / "out", "case_006"), wanted)


def test_a_label_map_elsewhere_than_the_softmax_is_rejected(results: Path, tmp_path: Path) -> None:
    predicted = put(tmp_path / "predicted", [6])
    run("calibrate", results, "--folds", 0)
    apply = ("apply", results / "segcal_temperature.json", "--predictions", predicted)
    labels = probs_in(predicted, "case_006").argmax(0).astype(np.uint8)
    write_nifti(predicted / "case_006.nii.gz", labels[:, ::-1].transpose(0, 2, 1))
    rejected("case_006", *apply, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (predicted / "case_006.nii.gz").rename(predicted / "case_006.mha")
    output = run(*apply, "--out", tmp_path / "out")
    assert "no label map is written for 1 cases (case_006, …)" in output


def test_an_invalid_ignore_label(results: Path) -> None:
    write_dataset(results, ignore="x")
    rejected("dataset.json: has the ignore label 'x'", "calibrate", results)


def test_all_predictions_or_none(results: Path, tmp_path: Path) -> None:
    predicted, out = put(tmp_path / "predicted", [6, 7]), tmp_path / "out"
    run("calibrate", results, "--folds", 0)
    bad = np.full_like(probs_in(predicted, "case_007"), np.nan)
    np.savez(predicted / "case_007.npz", probabilities=bad)
    calibrator = results / "segcal_temperature.json"
    apply = ("apply", calibrator, "--predictions", predicted, "--out", out)
    rejected("case_007.npz: Expected probabilities to be finite", *apply)
    assert not out.exists()


def test_images_reoriented_by_simpleitk(results: Path, tmp_path: Path) -> None:
    """Predictions of nnU-Net's SimpleITKIOWithReorient: label maps equal those of nnU-Net."""
    import SimpleITK

    name = SimpleITK.DICOMOrientImageFilter_GetOrientationFromDirectionCosines
    predicted = put(tmp_path / "predicted", [6])
    image = SimpleITK.ReadImage(str(predicted / "case_006.nii.gz"))
    turned = SimpleITK.DICOMOrient(image, "RAS")
    classes = [
        SimpleITK.GetImageFromArray(np.ascontiguousarray(part))
        for part in probs_in(predicted, "case_006")
    ]
    for part in classes:
        part.CopyInformation(image)
    arrays = [SimpleITK.GetArrayFromImage(SimpleITK.DICOMOrient(p, "RAS")) for p in classes]
    np.savez(predicted / "case_006.npz", probabilities=np.stack(arrays))
    stuff = {
        "spacing": turned.GetSpacing(), "origin": turned.GetOrigin(),
        "direction": turned.GetDirection(), "original_orientation": name(image.GetDirection()),
    }  # fmt: skip
    (predicted / "case_006.pkl").write_bytes(
        pickle.dumps({"sitk_stuff": stuff, "spacing": list(turned.GetSpacing())[::-1]})
    )
    run("calibrate", results, "--folds", 0)
    out = tmp_path / "out"
    run("apply", results / "segcal_temperature.json", "--predictions", predicted, "--out", out)
    ours, theirs = (nib.load(f / "case_006.nii.gz") for f in (out, predicted))
    assert ours.get_fdata().any()
    np.testing.assert_array_equal(ours.get_fdata(), theirs.get_fdata())
    np.testing.assert_array_equal(ours.affine, theirs.affine)
    wanted = np.stack(arrays).argmax(0)
    np.testing.assert_array_equal(probs_in(out, "case_006").argmax(0), wanted)
