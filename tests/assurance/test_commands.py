"""`segcal assure fit | apply | check` on real files in every format."""

import csv
import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from helpers.assurance_phantoms import phantom as scan_of
from helpers.assurance_phantoms import write_phantoms
from helpers.runs import phantom, settings
from helpers.softmax_files import (
    FORMS,
    SPACING_ZYX,
    write_nifti,
    write_prediction,
    write_predictions,
)
from segcal.assurance import INTERVAL_TITLES, Assurance, load_assurance
from segcal.assurance.check import AURC
from segcal.assurance.dice_line import DiceLine
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.data import open_dataset
from segcal.evaluation import apply_folder, export_predictions, open_run
from segcal.posthoc import TemperatureScaling
from segcal.training import train

OPTIONS = ("--min-dice", 0.5, "--max-failures", 0.2)


def segcal(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["assure", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def fit(data: Path, out: Path, *more: object) -> Assurance:
    segcal("fit", "--probs", data / "probs", "--labels", data / "labels", "--out", out, *more)
    return load_assurance(out)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assure")
    write_phantoms(folder / "fit", range(40))
    write_phantoms(folder / "test", range(40, 64))
    return folder


@pytest.fixture(scope="module")
def file(data: Path) -> Path:
    fit(data / "fit", data / "a.json", *OPTIONS, "--images", data / "fit" / "images")
    return data / "a.json"


def test_fit_holds_what_it_promises(file: Path, data: Path) -> None:
    found = load_assurance(file)
    assert len(found.cases) == 40
    assert found.calibrator["method"] == "temperature"
    assert found.refused == ()
    assert found.referral.accepted <= 40
    for structure in found.structures:
        assert 0.01 < structure.rho < 0.4
        assert structure.intervals["share"].slopes[1] == pytest.approx(1, abs=0.15)  # calibrated
        used = structure.intervals[structure.method]
        assert used.score_ml == min(one.score_ml for one in structure.intervals.values())
        assert 0.8 <= used.coverage <= 1
        assert structure.outer < structure.threshold < structure.inner
        best = max(structure.operating_points, key=lambda point: point.dice.mean)
        assert best.threshold == structure.threshold
        recall = [point.sensitivity.mean for point in structure.operating_points]
        assert recall == sorted(recall, reverse=True)


def test_apply_writes_tables_masks_and_a_page(file: Path, data: Path) -> None:
    out = data / "applied"
    test = data / "test"
    segcal("apply", file, "--probs", test / "probs", "--images", test / "images", "--out", out,
           "--masks", "argmax,dice,threshold,inner,outer")  # fmt: skip
    volumes, cases = rows(out / "volumes.csv"), rows(out / "cases.csv")
    assert (len(volumes), len(cases)) == (48, 24)
    first = volumes[0]
    probs = nib.load(test / "probs" / f"{first['case']}.nii.gz")
    mask = nib.load(out / "masks" / f"{first['case']}_argmax.nii.gz")
    np.testing.assert_allclose(mask.affine, probs.affine)
    labels = np.asarray(mask.dataobj)
    np.testing.assert_array_equal(labels, np.asarray(probs.dataobj).argmax(-1))
    ml = np.prod(SPACING_ZYX) / 1000
    assert float(first["ml"]) == pytest.approx((labels == 1).sum() * ml, abs=1e-5)
    inner, outer = (
        np.asarray(nib.load(out / "masks" / f"{first['case']}_{side}_class-1.nii.gz").dataobj) > 0
        for side in ("inner", "outer")
    )
    assert 0 < inner.sum() < outer.sum()
    assert not (inner & ~outer).any()
    for row in volumes:
        assert float(row["lower"]) < float(row["median"]) < float(row["upper"])
    assert {row["status"] for row in cases} <= {"accept", "refer"}
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("data:image/webp") == 24
    again = ("apply", file, "--probs", test / "probs", "--out", out)
    assert "--overwrite" in segcal(*again, code=1).exception.__str__()
    segcal(*again, "--overwrite")
    assert not (out / "masks").exists()
    with pytest.raises(PathError, match="not a result"):
        CliRunner().invoke(
            app, ["assure", *map(str, again[:-1]), str(test)], catch_exceptions=False
        )


def test_check_confirms_the_promises(file: Path, data: Path) -> None:
    test, out = data / "test", data / "checked"
    args = ("--probs", test / "probs", "--labels", test / "labels", "--out", out)
    segcal("check", file, *args)
    content = json.loads((out / "check.json").read_text())
    assert content["cases"] == 24
    assert not any(promise["broken"] for promise in content["promises"])
    value = {(m["structure"], m["method"], m["what"]): m["value"] for m in content["measures"]}
    assert value["class 1", "independent", "coverage"] < 0.8
    assert value["class 1", "nested", "coverage"] == 1
    crps = [value["class 1", name, "CRPS ml"] for name in ("factor", "independent", "nested")]
    assert crps[0] == min(crps)
    assert value["all", "expected Dice", "absolute error"] < 0.05
    assert value["all", "expected Dice", AURC] <= value["all", "mean confidence", AURC] + 0.02
    one = rows(out / "volumes.csv")[0]
    inside = float(one["lower"]) <= float(one["true_ml"]) <= float(one["upper"])
    assert float(one["covered"]) == inside
    by_patient = data / "by_patient"
    segcal("check", file, *args[:-1], by_patient, "--patient", r"p\d+")
    promises = json.loads((by_patient / "check.json").read_text())["promises"]
    assert promises[0]["patients"] == 12
    wide = promises[0]["high"] - promises[0]["low"]
    assert wide > content["promises"][0]["high"] - content["promises"][0]["low"]


def test_a_broken_promise_is_exit_code_1(file: Path, data: Path, tmp_path: Path) -> None:
    for path in (data / "test" / "labels").iterdir():
        image = nib.load(path)
        labels = np.asarray(image.dataobj)
        write_nifti(tmp_path / "labels" / path.name, np.roll(labels, 3, axis=1).T * (labels.T > 0))
    result = segcal("check", file, "--probs", data / "test" / "probs", "--labels",
                    tmp_path / "labels", "--out", tmp_path / "out", code=1)  # fmt: skip
    assert "BROKEN" in result.output
    promises = json.loads((tmp_path / "out" / "check.json").read_text())["promises"]
    broken = sum(promise["broken"] for promise in promises)
    assert broken > 0
    conclusion = f"{broken} of {len(promises)} promises broken"
    assert conclusion in result.output
    assert conclusion in (tmp_path / "out" / "index.html").read_text()
    assert "simultaneous" in result.output
    assert "AURC" not in result.output
    assert "accepted share" in result.output


def test_no_promise_is_no_success(data: Path, tmp_path: Path) -> None:
    """Four scans are too few to promise anything."""
    few = tmp_path / "few"
    write_phantoms(few, range(4))
    fit(few, tmp_path / "a.json")
    result = segcal("check", tmp_path / "a.json", "--probs", data / "test" / "probs", "--labels",
                    data / "test" / "labels", "--out", tmp_path / "out")  # fmt: skip
    assert json.loads((tmp_path / "out" / "check.json").read_text())["promises"] == []
    assert "promises broken" not in result.output
    assert "no promise" in result.output


def test_without_a_referral_no_share_is_accepted(data: Path, tmp_path: Path) -> None:
    given = ("--probs", data / "fit" / "probs", "--labels", data / "fit" / "labels")
    printed = segcal("fit", *given, "--out", tmp_path / "a.json", "--min-dice", 0.999).output
    found = load_assurance(tmp_path / "a.json")
    assert found.referral is None
    assert f"temperature {found.calibrator['params']['temperature']:.4f}" in printed
    result = segcal("check", tmp_path / "a.json", "--probs", data / "test" / "probs", "--labels",
                    data / "test" / "labels", "--out", tmp_path / "out")  # fmt: skip
    assert "accepted share" not in result.output
    assert "in scope share" in result.output


def test_scans_of_the_fit_are_no_check(file: Path, data: Path, tmp_path: Path) -> None:
    result = segcal("check", file, "--probs", data / "fit" / "probs", "--labels",
                    data / "fit" / "labels", "--out", tmp_path / "out", code=1)  # fmt: skip
    assert isinstance(result.exception, PathError)
    assert not (tmp_path / "out").exists()
    # Predicted again, so that the file differs: recognized by name and labels.
    again = tmp_path / "again"
    probs = np.asarray(nib.load(data / "fit" / "probs" / "p003_1.nii.gz").dataobj).T
    write_nifti(again / "probs" / "p003_1.nii.gz", 0.999 * probs + 0.001 / 3)
    write = ("check", file, "--probs", again / "probs", "--labels", again / "labels")
    (again / "labels").mkdir()
    shutil.copy(data / "fit" / "labels" / "p003_1.nii.gz", again / "labels")
    assert isinstance(segcal(*write, "--out", tmp_path / "out", code=1).exception, PathError)
    # Another scan of a patient of the fit.
    label = np.asarray(nib.load(again / "labels" / "p003_1.nii.gz").dataobj).T
    write_nifti(again / "labels" / "p003_1.nii.gz", np.roll(label, 1, axis=2))
    by_patient = (*write, "--patient", r"p\d+", "--out", tmp_path / "out")
    by_patient_fit = fit(data / "fit", tmp_path / "p.json", "--patient", r"p\d+")
    assert by_patient_fit.cases[0].patient == "p000"
    refused = segcal("check", tmp_path / "p.json", *by_patient[2:], code=1)
    assert isinstance(refused.exception, PathError)


def test_a_run_in_place_of_files(tmp_path: Path) -> None:
    """Validation cases fit and test cases check, on the original grid; the same as from files."""
    run = tmp_path / "run"
    train(settings(phantom(tmp_path / "data", cases=24, size=32, slices=4), epochs=1), run)
    segcal("fit", "--run", run, "--out", tmp_path / "a.json", "--calibrator", "none")
    found = load_assurance(tmp_path / "a.json")
    patients = export_predictions(run, "val", tmp_path / "val")
    assert {case.case: case.patient for case in found.cases} == patients
    names = open_run(run).data_info.classes
    assert [s.name for s in found.structures] == [names[k] for k in sorted(names)][1:]
    same = fit(tmp_path / "val", tmp_path / "b.json", "--calibrator", "none",
               "--ignore-label", 255)  # fmt: skip
    assert same.structures == found.structures
    segcal("check", tmp_path / "a.json", "--run", run, "--out", tmp_path / "checked")
    tested = {row["case"] for row in rows(tmp_path / "checked" / "cases.csv")}
    assert tested == {case.name for case in open_run(run).open_data().part("test")}
    assert isinstance(segcal("fit", "--out", tmp_path / "c.json", code=1).exception, ValueError)
    # Messages name the run, not the temporary files of its predictions.
    export_predictions(run, "test", tmp_path / "test")
    fit(tmp_path / "test", tmp_path / "d.json", "--calibrator", "none", "--ignore-label", 255)
    seen = segcal("check", tmp_path / "d.json", "--run", run, "--out", tmp_path / "x", code=1)
    assert str(seen.exception).startswith(f"{run}: case phantom")
    assert ".partial" not in str(seen.exception)


def test_folds_fit_out_of_fold_and_check_by_their_mean(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", cases=14, size=32, slices=4)
    runs = [tmp_path / "cv" / f"fold{k}" for k in range(5)]
    for k, run in enumerate(runs):
        train(settings(data, data={"fold": k}, epochs=1, seed=k, optimizer={"lr": 0.03}), run)
    segcal("fit", "--run", runs[0].parent, "--out", tmp_path / "a.json")
    found = load_assurance(tmp_path / "a.json")
    splits = open_dataset(data).splits
    assert {case.case for case in found.cases} == {*splits.train, *splits.val}
    segcal("check", tmp_path / "a.json", "--run", runs[0].parent, "--out", tmp_path / "checked")
    assert {r["case"] for r in rows(tmp_path / "checked" / "cases.csv")} == {*splits.test}

    def exported(run: Path, split: str) -> dict[str, np.ndarray]:
        folder = tmp_path / f"{run.name}_{split}"
        names = export_predictions(run, split, folder)
        files = {name: folder / "probs" / f"{name}.nii" for name in names}
        return {name: np.asarray(nib.load(path).dataobj) for name, path in files.items()}

    both = exported(runs[0].parent, "val")
    for run in runs:
        for name, values in exported(run, "val").items():
            np.testing.assert_array_equal(both[name], values)
    members = [exported(run, "test") for run in runs]
    for name, values in exported(runs[0].parent, "test").items():
        mean = np.mean([member[name] for member in members], axis=0)
        np.testing.assert_allclose(values, mean, atol=1e-6)
        assert not np.allclose(values, members[0][name], atol=1e-3)


HEADS = ("--heads", "both=1+2,second=2")


def _write_heads(folder: Path, seeds: range) -> Path:
    """The phantoms as a network with two nested regions would predict them."""
    (folder / "probs").mkdir(parents=True)
    for seed in seeds:
        probs, target = scan_of(seed)
        name = f"p{seed // 2:03d}_{seed % 2}"
        heads = np.stack([1 - probs[0], probs[2]])
        write_prediction(folder / "probs", name, "nifti", heads)
        write_nifti(folder / "labels" / f"{name}.nii.gz", target)
    return folder


def test_sigmoid_heads(data: Path, tmp_path: Path) -> None:
    """A head is a structure of its own: the one of class 2 has the limits of that class."""
    held = _write_heads(tmp_path / "fit", range(40))
    other = _write_heads(tmp_path / "test", range(40, 64))
    plain = ("--calibrator", "none", *OPTIONS)
    found = fit(held, tmp_path / "heads.json", *HEADS, *plain)
    assert found.heads == {"both": (1, 2), "second": (2,)}
    by_class = fit(data / "fit", tmp_path / "classes.json", *plain).structures[1]
    ours = found.structures[1]
    for what in ("rho", "outer", "inner", "threshold"):
        assert getattr(ours, what) == pytest.approx(getattr(by_class, what), abs=1e-6), what
    check = ("--probs", other / "probs", "--labels", other / "labels", *HEADS)
    segcal("check", tmp_path / "heads.json", *check, "--out", tmp_path / "checked")
    assert {r["structure"] for r in rows(tmp_path / "checked" / "volumes.csv")} == set(found.heads)
    out = tmp_path / "out"
    segcal("apply", tmp_path / "heads.json", "--probs", other / "probs", "--out", out,
           "--masks", "argmax,dice,outer")  # fmt: skip
    assert len(list((out / "masks").iterdir())) == 24 * 3 * 2
    volumes = {(r["case"], r["structure"]): float(r["ml"]) for r in rows(out / "volumes.csv")}
    probs = np.asarray(nib.load(other / "probs" / "p020_0.nii.gz").dataobj)
    for k, name in enumerate(found.heads):
        mask = np.asarray(nib.load(out / "masks" / f"p020_0_argmax_{name}.nii.gz").dataobj)
        np.testing.assert_array_equal(mask, probs[..., k] > 0.5)
        ml = mask.sum() * np.prod(SPACING_ZYX) / 1000
        assert volumes["p020_0", name] == pytest.approx(ml, rel=1e-4)
    # Each head has its own temperature; probabilities of exclusive classes are refused.
    fitted = fit(held, tmp_path / "t.json", *HEADS)
    assert set(fitted.calibrator["params"]) == {"both", "second"}
    segcal("apply", tmp_path / "t.json", "--probs", other / "probs", "--out", tmp_path / "t")
    refused = segcal("apply", tmp_path / "t.json", "--probs", data / "test" / "probs",
                     "--out", tmp_path / "u", code=1)  # fmt: skip
    assert isinstance(refused.exception, PathError)


def test_names_are_no_formulas(file: Path, data: Path, tmp_path: Path) -> None:
    probs = tmp_path / "probs"
    probs.mkdir()
    source = sorted((data / "test" / "probs").iterdir())[0]
    shutil.copy(source, probs / f"=1+1{''.join(source.suffixes)}")
    segcal("apply", file, "--probs", probs, "--out", tmp_path / "out")
    for table in ("cases.csv", "volumes.csv"):
        assert {row["case"] for row in rows(tmp_path / "out" / table)} == {"'=1+1"}


def test_scans_that_look_like_those_of_one_patient_are_reported(data: Path, tmp_path: Path) -> None:
    where = ("fit", "--probs", data / "fit" / "probs", "--labels", data / "fit" / "labels")
    for options, expected in (((), True), (("--patient", "(.+)_"), False)):
        result = segcal(*where, "--out", tmp_path / f"{expected}.json", *options)
        assert ("look like scans of one patient" in result.stderr) == expected


def test_other_scans_are_out_of_scope(file: Path, data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for part in ("probs", "images"):
        (new / part).mkdir(parents=True)
    names = ["p020_0", "p020_1", "p021_0"]
    for name in names:
        shutil.copy(data / "test" / "probs" / f"{name}.nii.gz", new / "probs")
        shutil.copy(data / "test" / "images" / f"{name}_0000.nii.gz", new / "images")
    bright = nib.load(new / "images" / "p020_0_0000.nii.gz")
    write_nifti(new / "images" / "p020_0_0000.nii.gz", np.asarray(bright.dataobj).T * 30)
    vague = np.asarray(nib.load(new / "probs" / "p020_1.nii.gz").dataobj).T
    write_nifti(new / "probs" / "p020_1.nii.gz", (0.5 * vague + 0.5 / 3).astype(np.float32))
    segcal("apply", file, "--probs", new / "probs", "--images", new / "images",
           "--out", tmp_path / "out")  # fmt: skip
    found = {row["case"]: row for row in rows(tmp_path / "out" / "cases.csv")}
    assert [found[name]["in_scope"] for name in names] == ["no", "no", "yes"]
    assert "intensity" in found["p020_0"]["reason"]
    assert "shape: expected volume" in found["p020_1"]["reason"]  # not the volume of the mask
    assert found["p020_0"]["status"] == "refer"


def test_masks_and_page_of_a_scan_without_a_structure(
    file: Path, data: Path, tmp_path: Path
) -> None:
    probs = np.asarray(nib.load(data / "test" / "probs" / "p020_0.nii.gz").dataobj).T
    faint = np.concatenate([1 - 0.45 * (1 - probs[:1]), 0.45 * probs[1:]]).astype(np.float32)
    (tmp_path / "probs").mkdir()
    write_nifti(tmp_path / "probs" / "faint.nii.gz", faint)
    out = tmp_path / "out"
    segcal("apply", file, "--probs", tmp_path / "probs", "--out", out, "--masks", "dice,outer")
    found = {
        name: np.asarray(nib.load(out / "masks" / f"faint_{name}.nii.gz").dataobj)
        for name in ("dice", "outer_class-1")
    }
    assert not found["dice"].any()  # no voxel is more likely inside than outside
    assert found["outer_class-1"].any()
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "no mask" in page
    assert "is below" in page


@pytest.mark.parametrize(("cases", "structures"), [(18, 2), (20, 2), (24, 1)])
def test_a_bias_of_expected_dice_is_corrected_or_stated(
    tmp_path: Path, cases: int, structures: int
) -> None:
    """Probabilities that are too sure promise a Dice that is too high.

    With one structure per scan, each exists in half of the patients.
    """
    folder = tmp_path / "sure"
    for part in ("probs", "labels"):
        (folder / part).mkdir(parents=True)
    for seed in range(cases):
        probs, target = scan_of(seed)
        sure = probs**4 / (probs**4).sum(0)
        if structures == 1:
            sure[0] += sure[1 + seed % 2]
            sure[1 + seed % 2] = 0
            target[target == 1 + seed % 2] = 0
        write_prediction(folder / "probs", f"p{seed:03d}", "nifti", sure)
        write_nifti(folder / "labels" / f"p{seed:03d}.nii.gz", target)
    found = fit(folder, tmp_path / "a.json", "--calibrator", "none")
    stated = any("expected Dice: in the fit it is too high" in line for line in found.refused)
    corrected = any(one.dice_line != DiceLine() for one in found.structures)
    enough = cases * structures / 2 >= 20
    assert (stated, corrected) == (not enough, enough)


def test_few_cases_support_few_promises(data: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    for part in ("probs", "labels"):
        (few / part).mkdir(parents=True)
        for path in sorted((data / "fit" / part).iterdir())[:8]:
            shutil.copy(path, few / part)
    found = fit(few, tmp_path / "a.json", "--calibrator", "none")
    assert found.calibrator is None
    assert [s.intervals for s in found.structures] == [{}, {}]
    assert len(found.refused) == 6
    assert "needs 9 patients, but there are 8" in found.refused[0]
    given = ("--probs", few / "probs", "--labels", few / "labels", "--calibrator", "none")
    printed = segcal("fit", *given, "--out", tmp_path / "again.json").output
    assert printed.count("no volume interval") == 2
    assert "ml" not in printed.split("not promised")[0]
    out = tmp_path / "out"
    applied = segcal("apply", tmp_path / "a.json", "--probs", few / "probs", "--out", out)
    assert {row["status"] for row in rows(out / "cases.csv")} == {"no rule"}
    page = (out / "index.html").read_text()
    assert "review every scan" in applied.output
    assert "review every scan" in page
    assert "0 referred" not in page
    assert rows(out / "volumes.csv")[0]["lower"] == ""
    result = segcal("apply", tmp_path / "a.json", "--probs", few / "probs", "--out",
                    tmp_path / "masks", "--masks", "outer", code=1)  # fmt: skip
    assert "--masks outer" in str(result.exception)
    # 9 patients are enough for intervals, but 8 are not, so nothing is cross-validated.
    for part in ("probs", "labels"):
        shutil.copy(sorted((data / "fit" / part).iterdir())[8], few / part)
    intervals = fit(few, tmp_path / "nine.json").structures[0].intervals
    assert all(np.isnan(one.coverage) and one.width_ml > 0 for one in intervals.values())
    # 40 scans of 20 patients are enough for intervals, not for the referral rule.
    patients = fit(data / "fit", tmp_path / "b.json", "--patient", r"p\d+")
    assert len({case.patient for case in patients.cases}) == 20
    assert patients.structures[0].intervals
    assert patients.referral is None


def test_masks_are_nested_whatever_the_risk(data: Path, tmp_path: Path) -> None:
    for structure in fit(data / "fit", tmp_path / "a.json", "--risk", 0.6).structures:
        assert structure.outer <= structure.threshold <= structure.inner


def test_options_change_the_result(file: Path, data: Path, tmp_path: Path) -> None:
    base = load_assurance(file).structures[0]
    other = fit(data / "fit", tmp_path / "a.json", "--coverage", 0.8, "--risk", 0.2,
                "--min-dice", 0.9, "--max-failures", 0.3, "--calibrator", "vector",
                "--classes", "nothing,left,right")  # fmt: skip
    one = other.structures[0]
    assert one.name == "left"
    assert one.intervals["factor"].width_ml < base.intervals["factor"].width_ml
    assert one.outer > base.outer
    assert one.inner < base.inner
    assert other.calibrator["method"] == "vector"
    assert other.referral != load_assurance(file).referral


def test_every_format_gives_the_same_volumes(data: Path, tmp_path: Path) -> None:
    results = {}
    for form in FORMS:
        folder = write_phantoms(tmp_path / form, range(10), form)
        out = tmp_path / f"{form}.json"
        fit(folder, out, "--calibrator", "none")
        segcal("apply", out, "--probs", folder / "probs", "--images", folder / "images", "--out",
               tmp_path / f"{form}_out", "--masks", "dice")  # fmt: skip
        results[form] = sorted(
            (r["case"], r["structure"], float(r["median"]), float(r["upper"]))
            for r in rows(tmp_path / f"{form}_out" / "volumes.csv")
        )
        mask = nib.load(tmp_path / f"{form}_out" / "masks" / "p000_0_dice.nii.gz")
        label = nib.load(folder / "labels" / "p000_0.nii.gz")
        np.testing.assert_allclose(mask.affine, label.affine, atol=1e-4)
        assert mask.shape == label.shape
    for form in FORMS[1:]:
        for a, b in zip(results[form], results["nnunet"], strict=True):
            assert a[:2] == b[:2]
            np.testing.assert_allclose(a[2:], b[2:], rtol=1e-4)


def test_arrays_without_images_are_read_in_a_stated_order(file: Path, tmp_path: Path) -> None:
    probs = write_phantoms(tmp_path / "arrays", range(100, 102), "npy_xyz") / "probs"
    base = ("apply", file, "--probs", probs, "--masks", "argmax", "--out")
    for axes, stated, shape in [("auto", "z, y, x", (0, 1, 2)), ("xyz", "x, y, z", (2, 1, 0))]:
        result = segcal(*base, tmp_path / axes, "--axes", axes)
        assert "1 mm" in result.stderr
        assert stated in result.stderr
        mask = nib.load(next((tmp_path / axes / "masks").iterdir()))
        stored = np.load(next(probs.iterdir())).shape[1:]
        assert mask.shape[::-1] == tuple(stored[i] for i in shape)


def test_processes_do_not_change_the_result(file: Path, data: Path, tmp_path: Path) -> None:
    images = (*OPTIONS, "--images", data / "fit" / "images")
    fit(data / "fit", tmp_path / "a.json", *images, "--jobs", 2)
    assert (tmp_path / "a.json").read_bytes() == file.read_bytes()


def test_invalid_fits_are_refused(data: Path, tmp_path: Path) -> None:
    given = ("--probs", data / "fit" / "probs", "--labels", data / "fit" / "labels")
    result = segcal("fit", *given, "--out", tmp_path / "a.json", "--calibrator", "temp", code=1)
    for part in ("--calibrator temp", "Did you mean 'temperature'?", "auto"):
        assert part in str(result.exception)
    result = segcal("fit", *given, "--out", tmp_path / "a.json", "--patient", "p", code=1)
    assert "one patient" in str(result.exception)
    other = TemperatureScaling()
    other.num_classes = 5
    other.set_params({"temperature": 1.0})
    other.save(tmp_path / "t.json")
    result = segcal("fit", *given, "--out", tmp_path / "a.json", "--calibrator",
                    tmp_path / "t.json", code=1)  # fmt: skip
    assert "fitted on 5 classes" in str(result.exception)
    assert not (tmp_path / "a.json").exists()


def test_the_calibrator_may_be_chosen(data: Path, tmp_path: Path) -> None:
    """`auto` fits what `segcal calibrate --method auto` fits."""
    given = ("--probs", data / "fit" / "probs", "--labels", data / "fit" / "labels")
    file, calibrator = tmp_path / "a.json", tmp_path / "c.json"
    printed = segcal("fit", *given, "--out", file, "--calibrator", "auto").output
    command = ["calibrate", *given, "--out", calibrator, "--method", "auto"]
    assert CliRunner().invoke(app, [str(word) for word in command]).exit_code == 0
    wanted, found = json.loads(calibrator.read_text()), load_assurance(file).calibrator
    assert found["params"] == wanted["params"]
    assert f"chosen: {wanted['about']['auto']['chosen']};" in printed


def test_a_calibrator_that_looks_at_neighbors(data: Path, tmp_path: Path) -> None:
    """`mixture` inside the fit gives what `segcal apply` before it gives."""
    for part in ("probs", "labels"):
        (tmp_path / "some" / part).mkdir(parents=True)
        for path in sorted((data / "fit" / part).iterdir())[:12]:
            shutil.copy(path, tmp_path / "some" / part)
    some = tmp_path / "some"
    found = fit(some, tmp_path / "inside.json", *OPTIONS, "--calibrator", "mixture")
    assert found.calibrator["method"] == "mixture"
    apply_folder(found.own_calibrator(), some / "probs", tmp_path / "changed", from_probs=True)
    before = ("--probs", tmp_path / "changed", "--labels", some / "labels", *OPTIONS)
    printed = segcal("fit", *before, "--calibrator", "none", "--out", tmp_path / "before.json")
    plain = load_assurance(tmp_path / "before.json")
    assert found.structures == plain.structures
    # 12 patients are too few to choose among kinds of intervals.
    assert {structure.method for structure in found.structures} == {"quantile"}
    assert printed.output.count("too few to choose") == len(found.structures)
    for structure in found.structures:
        assert f"  {INTERVAL_TITLES[structure.method]}" in printed.output
    for name, probs in (("inside", some / "probs"), ("before", tmp_path / "changed")):
        segcal("apply", tmp_path / f"{name}.json", "--probs", probs, "--out", tmp_path / name,
               "--masks", "dice,outer")  # fmt: skip
    for name in ("volumes.csv", "cases.csv"):
        assert rows(tmp_path / "inside" / name) == rows(tmp_path / "before" / name)
    # A file for calibrated predictions refuses others, and the other way round.
    for name, probs in (("before", some / "probs"), ("inside", tmp_path / "changed")):
        refused = segcal("apply", tmp_path / f"{name}.json", "--probs", probs,
                         "--out", tmp_path / "refused", code=1)  # fmt: skip
        assert str(refused.exception).startswith(str(probs))
        checked = segcal("check", tmp_path / f"{name}.json", "--probs", probs, "--labels",
                         some / "labels", "--out", tmp_path / "refused", code=1)  # fmt: skip
        assert "calibrated" in str(checked.exception)
    assert not (tmp_path / "refused").exists()
    for path in (tmp_path / "inside" / "masks").iterdir():
        one, other = (nib.load(tmp_path / n / "masks" / path.name) for n in ("inside", "before"))
        np.testing.assert_array_equal(one.get_fdata(), other.get_fdata())


def test_an_empty_prediction_is_referred(file: Path, tmp_path: Path) -> None:
    empty = np.zeros((3, 14, 18, 16), np.float32)
    empty[0] = 1
    (tmp_path / "probs").mkdir()
    np.save(tmp_path / "probs" / "empty.npy", empty)
    segcal("apply", file, "--probs", tmp_path / "probs", "--out", tmp_path / "out")
    (row,) = rows(tmp_path / "out" / "cases.csv")
    assert (row["expected_dice"], row["status"]) == ("", "refer")
    assert [float(r["ml"]) for r in rows(tmp_path / "out" / "volumes.csv")] == [0, 0]


def test_invalid_input_is_one_line(file: Path, data: Path, tmp_path: Path) -> None:
    probs = data / "test" / "probs"
    (tmp_path / "bad.json").write_text('{"format": "segcal-assurance"}')
    for path in (tmp_path / "no.json", tmp_path / "bad.json"):
        result = segcal("apply", path, "--probs", probs, "--out", tmp_path / "out", code=1)
        assert str(result.exception).startswith(str(path))
        assert "\n" not in str(result.exception)
    result = segcal("apply", file, "--probs", probs, "--out", tmp_path / "out", "--masks", "inn",
                    code=1)  # fmt: skip
    assert "--masks" in str(result.exception)
    two = write_predictions(tmp_path / "two", "npy", cases=1)
    np.save(two / "case_000.npy", np.full((2, 4, 5, 6), 0.5, np.float32))
    result = segcal("apply", file, "--probs", two, "--out", tmp_path / "out", code=1)
    assert "has 2 classes" in str(result.exception)
    np.save(two / "case_000.npy", np.full((3, 4, 5, 6), 2.0, np.float32))
    result = segcal("apply", file, "--probs", two, "--out", tmp_path / "out", code=1)
    assert str(two / "case_000.npy") in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_intensities_without_a_common_unit_do_not_refer(data: Path, tmp_path: Path) -> None:
    """Images of the fit whose deviations differ tenfold, as in MR; one image may differ."""
    images = tmp_path / "images"
    images.mkdir()
    for number, path in enumerate(sorted((data / "fit" / "images").iterdir())):
        values = np.asarray(nib.load(path).dataobj).T
        write_nifti(images / path.name, values * (10 if number % 3 == 0 else 1))
    found = fit(data / "fit", tmp_path / "a.json", *OPTIONS, "--images", images)
    assert {key.partition(":")[0] for key in found.scope.center} == {"confidence", "shape"}
    for number, path in enumerate(sorted((data / "fit" / "images").iterdir())):
        values = np.asarray(nib.load(path).dataobj).T
        write_nifti(images / path.name, values * (10 if number == 0 else 1))
    usual = fit(data / "fit", tmp_path / "b.json", *OPTIONS, "--images", images)
    assert "intensity" in {key.partition(":")[0] for key in usual.scope.center}


@pytest.mark.parametrize(("given", "remedy"), [("90", "0.9 for 90 %"), ("0", "from 0.001")])
def test_percent_is_no_share(given: str, remedy: str, tmp_path: Path) -> None:
    command = ["assure", "fit", "--probs", "p", "--labels", "l", "--out", str(tmp_path / "a.json")]
    done = CliRunner().invoke(app, [*command, "--coverage", given])
    assert done.exit_code == 2
    assert "--coverage" in done.output
    assert remedy in " ".join(done.output.split())


def test_a_scan_with_two_names_is_reported(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "fit", tmp_path / "fit")
    for kind in ("probs", "labels"):
        source = sorted((tmp_path / "fit" / kind).iterdir())[0]
        shutil.copy(source, source.with_name(f"again{''.join(source.suffixes)}"))
    for folder, expected in ((data, False), (tmp_path, True)):
        where = ("--probs", folder / "fit" / "probs", "--labels", folder / "fit" / "labels")
        result = segcal("fit", *where, "--out", tmp_path / f"{expected}.json")
        assert ("again = " in result.stderr) == expected
