"""`segcal calibrate` on files of every format."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import blobs, calibrated, softmax
from helpers.softmax_files import (
    FORMS,
    write_labels,
    write_nifti,
    write_predictions,
)
from segcal.cli import app
from segcal.evaluation.agreement import disagreement
from segcal.evaluation.posthoc_fit import fit_pairs
from segcal.posthoc import load_calibrator
from segcal.predictions import find_pairs
from segcal.stats import make_folds


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
    assert "Yes, calibration helped: on held-out cases, region all" in done.output
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
        # Probabilities below 1e-12 are clipped, logits are not.
        np.testing.assert_allclose(pair.load().values, wanted, atol=1e-3)


@pytest.mark.parametrize("command", [("calibrate", "--method"), ("assure", "fit", "--calibrator")])
def test_auto_with_one_patient_has_a_remedy_that_works(
    tmp_path: Path, labels: Path, command: tuple[str, ...]
) -> None:
    """Not --folds 0, which `auto` refuses and `assure fit` does not have."""
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    *words, option = command
    base = (*words, "--probs", probs, "--labels", labels, "--out", tmp_path / "c.json")
    done = run(*base, option, "auto", "--patient", "case")
    assert "name a method" in str(done.exception)
    assert "--folds" not in str(done.exception)


@pytest.mark.parametrize("method", ["vector", "dirichlet", "matrix"])
def test_changed_labels_are_counted(tmp_path: Path, labels: Path, method: str) -> None:
    folder = write_predictions(tmp_path / "logits", "npy", logits=True)
    file = tmp_path / "c.json"
    command = ("calibrate", "--logits", folder, "--labels", labels, "--out", file)
    done = run(*command, "--method", method, "--folds", 3)
    assert done.exit_code == 0, done.output
    assert f"{method} may change labels: " in done.output
    applied = run("apply", file, "--logits", folder, "--out", tmp_path / "out")
    changed = sum(
        int((np.load(tmp_path / "out" / p.name).argmax(0) != np.load(p).argmax(0)).sum())
        for p in folder.iterdir()
    )
    assert f"{changed:,} of 13,440 voxels changed" in applied.output
    assert changed > 0


@pytest.mark.parametrize("too_sure", [3.0, 1.0])
def test_auto_chooses_by_cross_validated_nll(tmp_path: Path, labels: Path, too_sure: float) -> None:
    """Over-confident blobs are repaired; of calibrated ones, every method would only fit noise."""
    folder = write_predictions(tmp_path / "probs", "nnunet", too_sure=too_sure)
    file = tmp_path / "c.json"
    base = ("calibrate", "--probs", folder, "--labels", labels, "--out", file, "--method", "auto")
    done = run(*base)
    assert done.exit_code == 0, done.output
    about = json.loads(file.read_text())["about"]["auto"]
    relative, chosen = about["relative_nll"], about["chosen"]
    assert f"chosen: {chosen}" in done.output
    assert (chosen == "none") == (too_sure == 1.0)
    assert set(relative) == {"temperature", "mixture", "dirichlet"}
    if chosen == "none":
        assert min(relative.values()) > 0.97
        assert load_calibrator(file).params() == {"temperature": 1.0}
    else:
        assert min(relative, key=relative.__getitem__) == chosen
        assert chosen != "dirichlet"  # whose parameters would fit noise
        assert relative[chosen] < 0.8
        assert relative["temperature"] == pytest.approx(relative["mixture"], abs=0.02)
    # The numbers are those of the cross-validation of the method alone.
    pairs = find_pairs(folder, labels)
    verdict = fit_pairs(pairs, "temperature", from_probs=True).verdict
    assert verdict is not None
    for region in ("all", "predicted_boundary"):
        change = verdict.change("nll", region)
        assert about["nll"]["temperature"][region] == pytest.approx(change.after)
        assert about["nll"]["none"][region] == pytest.approx(change.before)
    for part in ("--method temp", "Did you mean 'temperature'?", "auto"):
        assert part in str(run(*base[:-1], "temp", "--overwrite").exception)
    for wrong in (("--folds", 0), ("--set", "odir=1")):
        assert "--method auto" in str(run(*base, "--overwrite", *wrong).exception)


def test_distance_as_a_command(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "nnunet")
    file = tmp_path / "d.json"
    base = ("calibrate", "--probs", folder, "--labels", labels, "--out", file)
    done = run(*base, "--method", "distance", "--folds", 2)
    assert done.exit_code == 0, done.output
    assert "distance does not change labels: 0 of" in done.output
    assert run("apply", file, "--probs", folder, "--out", tmp_path / "out").exit_code == 0
    case = next(iter(find_pairs(tmp_path / "out", labels))).load()
    wanted = load_calibrator(file).transform(
        softmax(blobs(0)[0]).astype(np.float32), from_probs=True, spacing_mm=case.spacing_mm
    )
    np.testing.assert_allclose(case.values, wanted, atol=1e-6)
    # A file without a voxel size cannot be calibrated by distance.
    bare = write_predictions(tmp_path / "bare", "npy")
    problem = run("apply", file, "--probs", bare, "--out", tmp_path / "none")
    assert "case_000.npy: " in str(problem.exception)
    assert "voxel size" in str(problem.exception)


def test_a_calibrated_network_gets_no(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "npy", too_sure=1.0)
    done = run("calibrate", "--probs", folder, "--labels", labels, "--out", tmp_path / "t.json")
    assert "no evidence that calibration helped" in done.output, done.output


def test_exchanged_classes_are_named(tmp_path: Path, labels: Path) -> None:
    probs = write_predictions(tmp_path / "probs", "npy")
    names = [file.stem for file in probs.iterdir()]
    truth = {name: blobs(int(name[-3:]))[1] for name in names}

    def output(change: Callable[[np.ndarray], np.ndarray]) -> str:
        for name, y in truth.items():
            good = 0.05 + 0.85 * np.eye(3)[y].transpose(3, 0, 1, 2)
            np.save(probs / f"{name}.npy", change(good).astype(np.float32))
        files = ("--probs", probs, "--labels", labels, "--out", tmp_path / "t.json")
        return str(run("calibrate", *files, "--folds", 0, "--overwrite").output)

    assert "hardly agree" not in output(lambda p: p)
    assert "in the order 0, 2, 1 it would be 1.00" in output(lambda p: p[[0, 2, 1]])
    assert "in the order 2, 0, 1 it would be 1.00" in output(lambda p: p[[1, 2, 0]])
    assert "the same orientation" in output(lambda p: np.roll(p, 8, -1))


def test_two_of_many_classes_are_exchanged_but_not_if_both_are_predicted_as_one() -> None:
    table = np.diag([10_000, *[500] * 13])
    assert disagreement(table) == ""
    exchanged = table.copy()
    exchanged[[2, 3]] = table[[3, 2]]
    assert "in class 2, 3 (pooled Dice 0.00)" in disagreement(exchanged)
    table[3, 2], table[3, 3] = 5000, 0
    assert disagreement(table) == ""


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


def test_a_fit_on_the_foreground_is_worse_elsewhere(tmp_path: Path, labels: Path) -> None:
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
    with pytest.raises(ValueError, match="does not match case"):
        make_folds(names, 2, "subject")


def test_cases_are_scored_by_a_fit_without_them(tmp_path: Path) -> None:
    """One case is over-confident, the other under-confident: each fit is wrong for the other."""
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
    assert "Too few cases to decide (6 are needed)" in verdict.summary()


def test_patients_and_warnings_of_folds_are_reported(tmp_path: Path, labels: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "npy")
    base = ("calibrate", "--probs", folder, "--labels", labels, "--out")
    done = run(*base, tmp_path / "p.json", "--patient", r"case_00([02]|\d)", "--folds", 2)
    assert "6 patients, 6 cases" in done.output, done.output
    done = run(*base, tmp_path / "q.json", "--patient", "[0-2]|3|4|5$", "--folds", 2)
    assert done.exit_code == 1
    done = run(*base, tmp_path / "t.json", "--folds", 3, "--set", "bounds=0.5,2")
    assert "warning: the temperature stopped at its limit" in done.output
    assert "in 3 of 3 folds: the temperature stopped at its limit" in done.output
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["fit"]["at_bound"] == ["temperature"]
    (line,) = content["about"]["cross_validation"]["warnings"]
    assert line.startswith("in 3 of 3 folds: ")


def test_an_empty_region_is_reported_and_the_file_is_json(tmp_path: Path) -> None:
    (tmp_path / "probs").mkdir()
    for i in range(2):
        np.save(tmp_path / "probs" / f"c{i}.npy", softmax(calibrated((4, 5, 6), seed=i)[0]))
        write_nifti(tmp_path / "labels" / f"c{i}.nii.gz", np.zeros((4, 5, 6), np.uint8))
    file = tmp_path / "t.json"
    done = run("calibrate", "--probs", tmp_path / "probs", "--labels", tmp_path / "labels",
               "--out", file)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert re.search(r"foreground +ece +has no voxels", done.output)
    assert "nan" not in done.output

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(file.read_text(), parse_constant=strict)
    assert load_calibrator(file).about["cross_validation"]["changes"]


def test_invalid_input_is_one_line_and_nothing_is_written(tmp_path: Path, labels: Path) -> None:
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
    assert "method dirichlet" in problem(*base, "--probs", probs, "--method", "matrix")
    assert "one of 'predicted'" in problem(*base, "--probs", probs, "--region", "organ")
    assert "--set odir=much" in problem(*base, "--probs", probs, "--set", "odir=much")
    absent = tmp_path / "nothing"
    assert f"{absent}: does not exist; check the path" in problem(*base, "--probs", absent)
    assert "calibrator 'temperature' has no option 'foo'. Options: bounds" in problem(
        *base, "--probs", probs, "--set", "foo=1"
    )
    sigmoid = tmp_path / "sigmoid"
    sigmoid.mkdir()
    for path in probs.iterdir():
        np.save(sigmoid / path.name, np.sqrt(np.load(path)))
    assert "sigmoid outputs" in problem(*base, "--probs", sigmoid)
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in probs.iterdir():
        found = np.load(path)
        np.save(masks / path.name, (found == found.max(0)).astype(np.float32))
    assert "only the values 0 and 1" in problem(*base, "--probs", masks)


@pytest.mark.parametrize("method", ["auto", "dirichlet"])
def test_the_number_of_jobs_changes_nothing(tmp_path: Path, labels: Path, method: str) -> None:
    folder = write_predictions(tmp_path / "probs", "nnunet")
    for jobs in (1, 2):
        done = run(
            "calibrate", "--probs", folder, "--labels", labels, "--out", tmp_path / f"{jobs}.json",
            "--method", method, "--folds", 2, "--jobs", jobs,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
    one, two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in (1, 2))
    assert one == two
