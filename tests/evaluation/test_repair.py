"""`segcal calibrate` and `segcal apply` on files of every form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from helpers.posthoc_samples import blobs, calibrated, softmax
from helpers.softmax_files import FORMS, write_images, write_labels, write_nifti, write_predictions
from segcal.cli import app
from segcal.evaluation.posthoc_fit import fit_pairs, make_folds
from segcal.evaluation.posthoc_verdict import METRICS, Verdict
from segcal.posthoc import load_calibrator
from segcal.predictions.pairing import find_pairs
from segcal.stats import compare


def run(*arguments: object) -> Any:
    """A command in this process; mistakes come back as the exception that main() prints."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels"))


@pytest.mark.parametrize("form", FORMS)
def test_calibrate_and_apply(tmp_path: Path, labels: Path, form: str) -> None:
    folder = write_predictions(tmp_path / "probs", form)
    file = tmp_path / "t.json"
    done = run("calibrate", "--probs", folder, "--labels", labels, "--out", file)
    assert done.exit_code == 0, done.output
    assert "Yes, it helped: on held-out cases, region all" in done.output
    assert "0 of 13,440 voxels changed their label" in done.output
    content = json.loads(file.read_text())
    assert content["params"]["temperature"] == pytest.approx(3.0, abs=0.15)
    assert content["about"]["cross_validation"]["helped"] == "yes"
    assert content["fit"]["cases"] == 6
    assert file.stat().st_size < 8192

    done = run("apply", file, "--probs", folder, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "6 cases, 0 of 13,440 voxels changed their label" in done.output
    for i, pair in enumerate(find_pairs(tmp_path / "out", labels)):
        wanted = load_calibrator(file).transform(blobs(i)[0])
        # Probabilities below 1e-12 are not told from it, logits are.
        np.testing.assert_allclose(pair.load().values, wanted, atol=1e-3)


@pytest.mark.parametrize("method", ["vector", "dirichlet", "matrix"])
def test_methods_that_change_labels_say_so(tmp_path: Path, labels: Path, method: str) -> None:
    folder = write_predictions(tmp_path / "logits", "npy", logits=True)
    file = tmp_path / "c.json"
    command = ("calibrate", "--logits", folder, "--labels", labels, "--out", file)
    done = run(*command, "--method", method, "--folds", 3)
    assert done.exit_code == 0, done.output
    assert f"{method} can change labels: " in done.output
    applied = run("apply", file, "--logits", folder, "--out", tmp_path / "out")
    changed = sum(
        int((np.load(tmp_path / "out" / p.name).argmax(0) != np.load(p).argmax(0)).sum())
        for p in folder.iterdir()
    )
    assert f"{changed:,} of 13,440 voxels changed" in applied.output
    assert changed > 0


def test_local_temperature_uses_images(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "nifti")
    images = write_images(tmp_path / "images")
    file = tmp_path / "local.safetensors"
    done = run(
        "calibrate", "--probs", folder, "--labels", labels, "--images", images, "--out", file,
        "--method", "local", "--folds", 2, "--set", "steps=8", "--set", "hidden=2",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "local keeps every label: 0 of" in done.output
    out = tmp_path / "out"
    done = run("apply", file, "--probs", folder, "--images", images, "--out", out)
    assert done.exit_code == 0, done.output
    assert "0 of 13,440 voxels changed" in done.output
    without = run("apply", file, "--probs", folder, "--out", tmp_path / "other")
    assert "fitted with images" in str(without.exception)


def test_a_calibrated_network_needs_no_help(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "npy", too_sure=1.0)
    done = run("calibrate", "--probs", folder, "--labels", labels, "--out", tmp_path / "t.json")
    assert "No, there is no sign that it helped" in done.output, done.output


def test_options_of_the_fit_change_it(tmp_path: Path, labels: Path) -> None:
    pairs = find_pairs(write_predictions(tmp_path / "probs", "npy"), labels)

    def theta(method: str = "temperature", **options: Any) -> Any:
        fitted = fit_pairs(pairs, method, from_probs=True, folds=0, **options)
        assert fitted.verdict is None
        return fitted.calibrator._theta  # type: ignore[attr-defined]

    plain = theta()
    for options in (
        {"region": "foreground"},
        {"region": "union"},
        {"balance": "class"},
        {"max_voxels": 500},
        {"options": {"bounds": (0.9, 1.1)}},
    ):
        assert np.abs(theta(**options) - plain).max() > 1e-4, options
    few = theta(max_voxels=500)
    assert np.abs(theta(max_voxels=500, seed=1) - few).max() > 1e-6
    np.testing.assert_array_equal(theta(max_voxels=500), few)


def test_a_fit_on_the_foreground_spoils_the_rest(tmp_path: Path, labels: Path) -> None:
    """The region is chosen by the truth: a calibrated network is changed, for the worse."""
    pairs = find_pairs(write_predictions(tmp_path / "probs", "npy", too_sure=1.0), labels)
    fits = {
        region: fit_pairs(pairs, "temperature", from_probs=True, region=region)
        for region in ("all", "foreground")
    }
    assert fits["all"].calibrator.temperature == pytest.approx(1.0, abs=0.05)  # type: ignore[attr-defined]
    verdict = fits["foreground"].verdict
    assert verdict is not None
    assert verdict.change("nll", "all").direction == "worse"
    assert fits["all"].verdict is not None
    assert fits["all"].verdict.helped == "no"


def test_folds_keep_patients_together() -> None:
    names = [f"patient{p:02d}_{frame}" for p in range(7) for frame in ("ED", "ES")]
    parts = make_folds(names, 3, r"patient\d+")
    assert sorted(i for part in parts for i in part) == list(range(14))
    for part in parts:
        assert {names[i][:9] for i in part}.isdisjoint(
            {names[i][:9] for i in range(14) if i not in part}
        )
    assert make_folds(names, 3, seed=1) != make_folds(names, 3, seed=0)
    assert len(make_folds(names, 50)) == 14
    with pytest.raises(ValueError, match="different patients"):
        make_folds(["a_1", "a_2"], 2, "a")
    with pytest.raises(ValueError, match="regular expression"):
        make_folds(names, 2, "(")
    with pytest.raises(ValueError, match="to match every case"):
        make_folds(names, 2, "subject")


def test_held_out_cases_are_judged_by_a_fit_that_did_not_see_them(tmp_path: Path) -> None:
    """One case of two is too sure, the other too unsure: each fit is wrong for the other."""
    for i, factor in enumerate((4.0, 0.25)):
        logits, target = calibrated((12, 13, 14), seed=i)
        (tmp_path / "logits").mkdir(exist_ok=True)
        np.save(tmp_path / "logits" / f"c{i}.npy", logits * factor)
        write_nifti(tmp_path / "labels" / f"c{i}.nii.gz", target.astype(np.uint8))
    pairs = find_pairs(tmp_path / "logits", tmp_path / "labels")
    verdict = fit_pairs(pairs, "temperature", from_probs=False, folds=2).verdict
    assert verdict is not None
    assert verdict.change("nll").after > verdict.change("nll").before
    assert verdict.helped == "too few"  # two cases prove nothing, however large the change
    assert "Too few cases to say (6 are needed): on held-out cases" in verdict.words()


def test_verdicts() -> None:
    def verdict(ece: float, nll: float) -> Verdict:
        rng = np.random.default_rng(0)
        start = rng.random(12)
        noise = rng.normal(size=12) * 0.02
        changes = [
            compare("all", "ece", start, start + ece + noise),
            compare("all", "nll", start, start + nll + noise),
        ]
        return Verdict("all", tuple(changes), 0, 1)

    assert verdict(-0.2, -0.2).helped == "yes"
    assert verdict(-0.2, 0.0).helped == "partly"
    assert verdict(-0.2, 0.2).helped == "partly"
    assert verdict(0.0, 0.0).helped == "no"
    assert verdict(0.2, 0.0).helped == "harmed"
    change = compare("all", "ece", [0.5, np.nan], [0.1, 0.2])
    assert (change.cases, change.units, change.direction) == (1, 1, "too few")
    empty = compare("all", "ece", [np.nan], [np.nan])
    assert (empty.cases, empty.direction) == (0, "unclear")
    nothing = Verdict("all", (*[compare("all", m, [1] * 6, [0] * 6) for m in METRICS], empty), 0, 1)
    assert nothing.helped == "yes"


def test_the_interval_is_students() -> None:
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(0)
    before, after = rng.random(9), rng.random(9)
    found = compare("all", "ece", before, after)
    low, high = ttest_rel(after, before).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_cases_of_one_patient_count_once() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(12), rng.random(12)
    alone = compare("all", "ece", before, after)
    copies = compare(
        "all", "ece", np.tile(before, 5), np.tile(after, 5), units=np.tile(range(12), 5).tolist()
    )
    assert (copies.cases, copies.units) == (60, 12)
    assert (copies.low, copies.high) == pytest.approx((alone.low, alone.high))
    assert compare("all", "ece", np.tile(before, 5), np.tile(after, 5)).high < alone.high
    changes = [compare("all", m, [1] * 12, [0] * 12, units=[*range(6)] * 2) for m in ("ece", "nll")]
    words = Verdict("all", tuple(changes), 0, 1, "patients").words()
    assert "Yes, it helped" in words
    assert "(6 patients, 12 cases, 95 % intervals)" in words


@pytest.mark.parametrize(("patients", "each"), [(2, 1), (3, 4), (6, 1), (10, 10), (20, 1)])
def test_a_change_that_is_none_is_rarely_called_one(patients: int, each: int) -> None:
    """Cases of a patient are much alike; the verdict may be wrong in one of twenty."""
    rng = np.random.default_rng(0)
    units = np.repeat(range(patients), each).tolist()
    wrong = 0
    for _ in range(400):
        after = np.repeat(rng.normal(size=patients), each) + 0.1 * rng.normal(size=len(units))
        change = compare("all", "ece", np.zeros(len(units)), after, units=units)
        wrong += change.direction in ("better", "worse")
    assert wrong <= 0.085 * 400
    assert (wrong > 0) == (patients >= 6)


def test_patients_and_trouble_in_folds_are_told(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "npy")
    base = ("calibrate", "--probs", folder, "--labels", labels, "--out")
    done = run(*base, tmp_path / "p.json", "--patient", r"case_00([02]|\d)", "--folds", 2)
    assert "6 patients, 6 cases" in done.output, done.output
    done = run(*base, tmp_path / "q.json", "--patient", "[0-2]|3|4|5$", "--folds", 2)
    assert done.exit_code == 1
    done = run(*base, tmp_path / "t.json", "--folds", 3, "--set", "bounds=0.5,2")
    assert "in 3 of 3 folds: the temperature reached its bound" in done.output
    assert "the temperature reached its bound: the best value may lie beyond" in done.output
    notes = json.loads((tmp_path / "t.json").read_text())["about"]["cross_validation"]["notes"]
    assert notes == ["in 3 of 3 folds: the temperature reached its bound"]


def test_an_empty_region_is_said_and_the_file_is_json(tmp_path: Path) -> None:
    (tmp_path / "probs").mkdir()
    for i in range(2):
        np.save(tmp_path / "probs" / f"c{i}.npy", softmax(calibrated((4, 5, 6), seed=i)[0]))
        write_nifti(tmp_path / "labels" / f"c{i}.nii.gz", np.zeros((4, 5, 6), np.uint8))
    file = tmp_path / "t.json"
    done = run("calibrate", "--probs", tmp_path / "probs", "--labels", tmp_path / "labels",
               "--out", file)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "foreground has no voxels" in done.output
    assert "nan" not in done.output

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(file.read_text(), parse_constant=strict)
    assert load_calibrator(file).about["cross_validation"]["changes"]


def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    logits = write_predictions(tmp_path / "logits", "npy", logits=True)
    out = tmp_path / "t.json"

    def problem(*arguments: object) -> str:
        done = run(*arguments)
        assert done.exit_code == 1
        assert not out.exists()
        return " ".join(str(done.exception).split())

    base = ("calibrate", "--labels", labels, "--out", out)
    assert "case_000.npy: Expected probabilities in [0, 1]" in problem(*base, "--probs", logits)
    assert "look like probabilities" in problem(*base, "--logits", probs)
    assert "either --logits" in problem(*base)
    assert "either --logits" in problem(*base, "--logits", logits, "--probs", probs)
    assert "Did you mean 'vector'" in problem(*base, "--probs", probs, "--method", "vectr")
    assert "Use the Dirichlet" in problem(*base, "--probs", probs, "--method", "matrix")
    assert "one of 'foreground'" in problem(*base, "--probs", probs, "--region", "organ")
    assert "key=number" in problem(*base, "--probs", probs, "--set", "odir=much")
    absent = tmp_path / "nothing"
    assert f"{absent}: does not exist; check the path" in problem(*base, "--probs", absent)
    assert "options of temperature among bounds, but got foo" in problem(
        *base, "--probs", probs, "--set", "foo=1"
    )
    images = ("--images", tmp_path)
    assert "temperature does not look at them" in problem(*base, "--probs", probs, *images)
    assert "local is not kept as json" in problem(*base, "--probs", probs, "--method", "local")
    sigmoid = tmp_path / "sigmoid"
    sigmoid.mkdir()
    for path in probs.iterdir():
        np.save(sigmoid / path.name, np.sqrt(np.load(path)))
    assert "sigmoid outputs" in problem(*base, "--probs", sigmoid)


def test_nothing_is_overwritten_unless_told(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file, out = tmp_path / "t.json", tmp_path / "out"
    base = ("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    assert run(*base).exit_code == 0
    again = run(*base)
    assert "t.json: exists already; say --overwrite" in str(again.exception)
    assert run(*base, "--overwrite").exit_code == 0

    apply = ("apply", file, "--probs", probs, "--out", out)
    assert run(*apply).exit_code == 0
    assert "exists already" in str(run(*apply).exception)
    assert run(*apply, "--overwrite").exit_code == 0
    same = run("apply", file, "--probs", probs, "--out", probs, "--overwrite")
    assert "another folder" in str(same.exception)


def everything(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_all_that_apply_writes_is_looked_at_first(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "nnunet")
    file, out = tmp_path / "t.json", tmp_path / "out"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    out.mkdir()
    (out / "case_005.pkl").write_text("mine")
    done = run("apply", file, "--probs", probs, "--out", out)
    assert "case_005.pkl: exists already; say --overwrite" in str(done.exception)
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
    assert sorted(everything(out)) == sorted(everything(probs))


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


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, labels: Path) -> Path:
    """A local temperature fitted on arrays in nibabel's order."""
    root = tmp_path_factory.mktemp("local")
    folder = write_predictions(root / "probs", "npy_xyz")
    done = run(
        "calibrate", "--probs", folder, "--labels", labels, "--out", root / "l.st",
        "--method", "local", "--folds", 0, "--set", "steps=1", "--set", "hidden=2",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    fitted: Any = load_calibrator(root / "l.st")
    rng = np.random.default_rng(0)  # weights that tell one axis from another
    fitted.set_tensors(
        {n: torch.from_numpy(rng.normal(size=t.shape)).float() for n, t in fitted.tensors().items()}
    )
    fitted.save(root / "l.st")
    return root


def test_apply_reads_axes_as_the_fit_did(local: Path, tmp_path: Path) -> None:
    calibrator, folder = load_calibrator(local / "l.st"), local / "probs"
    stored = np.load(folder / "case_000.npy")
    right = calibrator.transform(stored.transpose(0, 3, 2, 1), from_probs=True)
    wrong = calibrator.transform(stored, from_probs=True)
    assert np.abs(right - wrong.transpose(0, 3, 2, 1)).max() > 1e-3
    for axes, wanted in (("auto", right.transpose(0, 3, 2, 1)), ("zyx", wrong)):
        out = tmp_path / axes
        done = run("apply", local / "l.st", "--probs", folder, "--out", out, "--axes", axes)
        assert done.exit_code == 0, done.output
        np.testing.assert_array_equal(np.load(out / "case_000.npy"), wanted)


def test_local_temperature_of_planes_serves_planes(tmp_path: Path) -> None:
    (tmp_path / "probs").mkdir()
    for i in range(2):
        logits, target = calibrated((12, 13), seed=i)
        np.save(tmp_path / "probs" / f"c{i}.npy", softmax(logits * 3).astype(np.float32))
        write_nifti(tmp_path / "labels" / f"c{i}.nii.gz", target[None].astype(np.uint8))
    done = run(
        "calibrate", "--probs", tmp_path / "probs", "--labels", tmp_path / "labels", "--out",
        tmp_path / "l.st", "--method", "local", "--folds", 0, "--set", "steps=1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    done = run("apply", tmp_path / "l.st", "--probs", tmp_path / "probs", "--out", tmp_path / "o")
    assert done.exit_code == 0, done.exception
    assert np.load(tmp_path / "o" / "c0.npy").shape == (3, 12, 13)


def test_apply_refuses_other_networks_and_damaged_files(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    file = tmp_path / "t.json"
    run("calibrate", "--probs", probs, "--labels", labels, "--out", file, "--folds", 0)
    other = tmp_path / "other"
    other.mkdir()
    np.save(other / "a.npy", softmax(np.random.default_rng(0).normal(size=(4, 5, 6, 7))))
    done = run("apply", file, "--probs", other, "--out", tmp_path / "out")
    assert "has 4 classes, but the calibrator was fitted on 3" in str(done.exception)
    done = run("apply", file, "--logits", probs, "--out", tmp_path / "out")
    assert "case_000.npy: Expected argument `logits` to be logits" in str(done.exception)
    done = run("apply", file, "--probs", probs, "--out", tmp_path / "out", "--images", labels)
    assert "was fitted without images" in str(done.exception)
    file.write_text(file.read_text()[:50])
    done = run("apply", file, "--probs", probs, "--out", tmp_path / "out")
    assert str(done.exception) == f"{file}: is damaged or not a calibrator of segcal"
    assert not (tmp_path / "out").exists()
