"""`segcal audit`: the study and report of predictions of any network, and `--fail-if`."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from helpers.posthoc_samples import blobs, softmax
from helpers.runs import environment
from helpers.softmax_files import FORMS, write_images, write_labels, write_nifti, write_predictions
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.evaluation import (
    apply_folder,
    audit_predictions,
    calibration_of,
    check_rules,
    make_networks,
    parse_rule,
)
from segcal.evaluation.measured_cases import KeptCase, key_of
from segcal.metrics import evaluate_case, evaluate_heads, pool_cases
from segcal.posthoc import make_calibrator
from segcal.predictions import find_pairs
from segcal.report import write_report
from segcal.stats import to_frame


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "segcal", *map(str, arguments)],
        capture_output=True, text=True, timeout=240, env=environment(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit")
    write_labels(root / "labels", 4)
    write_images(root / "images", 4)
    write_predictions(root / "sure", "nnunet", 4)
    write_predictions(root / "good", "nifti", 4, too_sure=1.0)
    return root


def test_audit_as_a_command(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    base = (
        "audit", "--probs", f"too sure={files / 'sure'}", "--probs", f"good={files / 'good'}",
        "--labels", files / "labels", "--images", files / "images", "--out", out,
        "--classes", "background,left,right", "--dataset", "blobs",
    )  # fmt: skip
    done = command(*base, "--fail-if", "ece > 0.02", "--fail-if", "dsc<0.01")
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("segcal: ")
    for part in ("too sure: ", "ece", "0.0", "'ece > 0.02'"):
        assert part in line
    assert "over-confident: on average" in done.stdout
    # The sentence: how often the label is right where "too sure" calls a voxel left.
    labels = [blobs(i)[1] for i in range(4)]
    probs = [softmax(blobs(i)[0]) for i in range(4)]
    right = count = 0
    for p, y in zip(probs, labels, strict=True):
        said = (p.argmax(0) == 1) & (p.max(0) > 0.95) & (p.max(0) <= 0.99)
        right, count = right + int((y[said] == 1).sum()), count + int(said.sum())
    stated = f"left: when it says 95 to 99 %, it is right in {100 * right / count:.1f} % ["
    assert f"too sure, {stated}" in done.stdout
    assert f"too sure, {stated}" in (out / "report" / "index.html").read_text()
    assert "too sure" in (out / "report" / "index.html").read_text()
    study = json.loads((out / "study.json").read_text())
    assert study["kind"] == "audit"
    assert [m["title"] for m in study["methods"]] == ["too sure", "good"]
    assert study["datasets"][0]["structures"] == ["left", "right"]
    ranks = pd.read_csv(out / "ranks.csv")
    assert ranks["method"][0] == "good"

    again = command(*base)
    assert again.returncode == 2
    assert again.stderr.startswith(f"segcal: {out}: ")
    assert "--overwrite" in again.stderr


def test_limits_that_are_kept_exit_with_0(files: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            "audit", "--probs", str(files / "good"), "--labels", str(files / "labels"),
            "--name", "Ours", "--out", str(tmp_path / "study"), "--region", "union",
            "--fail-if", "all:ece>0.9",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "\nOurs: 4 cases, original grid; region union: ECE " in done.output


def test_the_table_of_an_audit_is_ranked_in_its_region(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    networks = {"sure": files / "sure", "good": files / "good"}
    audit_predictions(networks, files / "labels", out, region="union")
    source = json.loads((out / "rank.json").read_text())
    assert (source["cases"], source["region"]) == (["cases.csv"], "union")
    for options, region in (((), "union"), (("--region", "all"), "all")):
        rank = ("rank", str(out / "cases.csv"), "--patient", r"case_\d+", "--metric", "ece")
        done = CliRunner().invoke(app, [*rank, *options])
        assert done.exit_code == 0, done.output
        source = json.loads((out / "rank.json").read_text())
        assert (source["patient"], source["region"]) == (r"case_\d+", region)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_arrays(tmp_path: Path, form: str) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", form, 2)
    found = audit_predictions({"net": folder}, labels, tmp_path / "out").networks["net"].table()
    for i in range(2):
        logits, target = blobs(i)
        wanted = to_frame(
            evaluate_case(softmax(logits), target, (3.0, 2.0, 1.5), case=f"case_{i:03d}").rows
        )
        merged = wanted.merge(found, on=["case", "region", "metric", "label"], how="left")
        ours = merged[merged["label"] == "all"]
        assert len(ours) > 20
        np.testing.assert_allclose(ours["value_x"], ours["value_y"], atol=2e-3, equal_nan=True)
    assert {"dsc", "hd95_mm"} <= set(found["metric"])


def test_logits_and_options(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    logits = write_predictions(tmp_path / "logits", "npy", 2, logits=True)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    one = audit_predictions({"net": logits}, labels, tmp_path / "a", logits=True, region="union")
    two = audit_predictions({"net": probs}, labels, tmp_path / "b")
    ece = [a.networks["net"].means("all")["ece"] for a in (one, two)]
    assert ece[0] == pytest.approx(ece[1], abs=1e-6)
    assert "mean_abs_logit" in set(one.networks["net"].table()["metric"])
    assert json.loads((tmp_path / "a" / "study.json").read_text())["region"] == "union"
    assert "region union" in next(one.lines())
    assert one.networks["net"].info.labels == ("background", "class 1", "class 2")


def test_scans_of_one_patient_are_not_counted_as_independent(files: Path, tmp_path: Path) -> None:
    networks = {"sure": files / "sure", "good": files / "good"}
    out = tmp_path / "study"
    for pattern, patients in ((r"case_\d+", 4), (r"case_0", 1)):
        audit_predictions(networks, files / "labels", out, patient=pattern, overwrite=True)
        (dataset,) = json.loads((out / "study.json").read_text())["datasets"]
        assert len(dataset["patients"]) == 4
        assert len(set(dataset["patients"].values())) == patients
        warning = "treat as independent"
        assert (warning in write_report(out).read_text()) == (patients < 4)
    with pytest.raises(ValueError, match="'x!' does not match case"):
        audit_predictions(networks, files / "labels", tmp_path / "other", patient="x!")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("what", ["audit", "calibrate"])
def test_scans_that_look_like_those_of_one_patient_are_reported(
    files: Path, tmp_path: Path, what: str
) -> None:
    """Without --patient each of them counts as a patient."""
    for kind in ("good", "labels"):
        (tmp_path / kind).mkdir()
        for i, name in enumerate(("p01_1", "p01_2", "p02_1", "p02_2")):
            shutil.copy(files / kind / f"case_00{i}.nii.gz", tmp_path / kind / f"{name}.nii.gz")
    where = ["--probs", str(tmp_path / "good"), "--labels", str(tmp_path / "labels")]
    for options, expected in (([], True), (["--patient", "(.+)_"], False)):
        out = tmp_path / f"out{len(options)}"
        done = CliRunner().invoke(app, [what, *where, "--out", str(out), *options])
        assert done.exit_code == 0, done.stderr
        found = "p01_1 and p01_2 look like scans of one patient" in done.stderr
        assert found == expected == ("add --patient '(.+)_'" in done.stderr)


@pytest.mark.parametrize("what", ["audit", "calibrate"])
def test_a_scan_with_two_names_is_reported(files: Path, tmp_path: Path, what: str) -> None:
    """Otherwise it counts as two, and calibrate tests on a scan that it was fitted on."""
    for kind in ("good", "labels"):
        shutil.copytree(files / kind, tmp_path / kind)
        shutil.copy(files / kind / "case_001.nii.gz", tmp_path / kind / "again.nii.gz")
    for folder, expected in ((files, False), (tmp_path, True)):
        where = ["--probs", str(folder / "good"), "--labels", str(folder / "labels")]
        done = CliRunner().invoke(app, [what, *where, "--out", str(tmp_path / f"{expected}")])
        assert done.exit_code == 0, done.stderr
        assert ("again = case_001" in done.stderr) == expected
        assert ("have the prediction of another" in done.stderr) == expected


def test_a_network_that_finds_nothing_violates_a_limit_but_is_audited(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    for i in range(3):
        probs = np.stack([np.full(blobs(i)[1].shape, p, np.float32) for p in (0.9, 0.06, 0.04)])
        write_nifti(tmp_path / "blind" / f"case_{i:03d}.nii.gz", probs)
    done = CliRunner().invoke(
        app,
        [
            "audit", "--probs", str(tmp_path / "blind"), "--labels", str(labels),
            "--out", str(tmp_path / "study"), "--fail-if", "dsc<0.85",
        ],
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "FAILED blind: mean dsc = 0 violates --fail-if 'dsc<0.85'" in done.output
    assert set(pd.read_csv(tmp_path / "study" / "ranks.csv")["method"]) == {"blind"}
    page = (tmp_path / "study" / "report" / "index.html").read_text()
    assert '"dsc":0.0' in page  # in the case browser


def test_class_names_are_read_from_nnunet(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    probs = write_predictions(tmp_path / "probs", "nnunet", 1)
    names = {"labels": {"background": 0, "Anterior": 1, "Posterior": 2, "ignore": 3}}
    (probs / "dataset.json").write_text(json.dumps(names))
    found = audit_predictions({"net": probs}, labels, tmp_path / "out").networks["net"]
    assert found.info.structures == ("Anterior", "Posterior")
    regions = {"labels": {"background": 0, "whole": [1, 2], "core": [2]}}
    (probs / "dataset.json").write_text(json.dumps(regions))
    with pytest.raises(PathError, match=r"has 3 maps, but dataset.json names 2 regions"):
        audit_predictions({"net": probs}, labels, tmp_path / "out", overwrite=True)


def test_ignored_labels_and_skipped_cases(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    target = blobs(0)[1]
    target[:5] = 3
    write_nifti(labels / "case_000.nii.gz", target)
    found = audit_predictions({"net": probs}, labels, tmp_path / "out", ignore_label=3)
    assert found.unused == ("case_002",)
    assert "1 label map without" in (tmp_path / "out" / "study.json").read_text()
    bins = np.load(tmp_path / "out" / "runs" / "audit" / "net" / "seed0" / "bins.npz")
    everywhere = list(bins["regions"]).index("all")
    assert bins["top_count"][0, everywhere].sum() == target.size // 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p: p * 9 - 3, "It looks like logits"),
        (lambda p: np.sqrt(p), "sum to 1"),
        (lambda p: np.where(p > 0.99, np.nan, p), "NaN"),
    ],
)
def test_invalid_predictions_are_named_by_their_file(
    tmp_path: Path, change: Any, problem: str
) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    probs = write_predictions(tmp_path / "probs", "npy", 3)
    path = probs / "case_001.npy"
    np.save(path, change(np.load(path)))
    with pytest.raises(ValueError, match=problem) as caught:
        audit_predictions({"net": probs}, labels, tmp_path / "out")
    assert str(caught.value).startswith(f"{path}: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels", "probs"]


def test_networks_must_share_cases_and_classes(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    one = write_predictions(tmp_path / "one", "npy", 3)
    two = write_predictions(tmp_path / "two", "npy", 2)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="case_002 is only in one of 'a' and 'b'"):
        audit_predictions({"a": one, "b": two}, labels, out)
    with pytest.raises(ValueError, match=r"--classes .*3 different names"):
        audit_predictions({"a": one}, labels, out, classes=["background", "organ"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not a study"):
        audit_predictions({"a": one}, labels, tmp_path / "mine", overwrite=True)
    assert not out.exists()


def test_names_of_networks(tmp_path: Path) -> None:
    for generic in ("probs", "predictions", "softmax", "all", "test", "val"):
        assert list(make_networks([f"{tmp_path}/ours/{generic}"])) == [f"ours/{generic}"]
    assert list(make_networks([f"{tmp_path}/all/ours", "/probs"])) == ["ours", "probs"]
    assert list(make_networks([f"x={tmp_path}/ours/probs"])) == ["x"]
    assert make_networks(["a/b"], "Ours") == {"Ours": Path("a/b")}
    odd = tmp_path / "x=y"
    odd.mkdir()
    assert make_networks([str(odd)]) == {"x=y": odd}
    for several in (["a/b", "a/c"], ["A=a/b"]):
        with pytest.raises(ValueError, match="--name needs one FOLDER"):
            make_networks(several, "Ours")
    with pytest.raises(PathError, match=r"c/b: is named b, as a/b is") as error:
        make_networks(["a/b", "c/b"])
    assert error.value.path == Path("c/b")
    labels = write_labels(tmp_path / "labels", 1)
    probs = write_predictions(tmp_path / "probs", "npy", 1)
    found = audit_predictions({"a b": probs, "a/b": probs, "..": probs}, labels, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out" / "runs" / "audit").iterdir()) == [
        "a-b", "a-b-2", "network",
    ]  # fmt: skip
    assert list(found.networks) == ["a b", "a/b", ".."]


def test_calibrated_predictions_are_recognized(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    fitted = [(pair.load().values, pair.load().target) for pair in find_pairs(probs, labels)]
    calibrator = make_calibrator("temperature").fit(fitted, from_probs=True)
    apply_folder(calibrator, probs, tmp_path / "after", from_probs=True)
    audit_predictions({"a": probs, "b": tmp_path / "after"}, labels, tmp_path / "out")
    methods = json.loads((tmp_path / "out" / "study.json").read_text())["methods"]
    known = [method["options"].get("calibrated") for method in methods]
    assert known == [None, calibration_of(tmp_path / "after")]
    assert known[1].startswith("temperature ")


def test_rules(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    found = audit_predictions({"net": probs}, labels, tmp_path / "out")
    table = found.networks["net"].table()
    rows = table[(table["metric"] == "ece") & (table["region"] == "boundary")]
    mean = rows[rows["case"] != "pooled"]["value"].mean()

    def broken(text: str) -> list[str]:
        return check_rules(found.networks, [parse_rule(text)])

    assert broken(f"boundary:ece>{mean - 1e-6}")
    assert not broken(f"boundary:ece>{mean + 1e-6}")
    assert broken(f"boundary:ece<{mean + 1e-6}")
    assert broken("dsc<=1")
    assert broken("dsc>=1e-9")
    assert not broken("hd95>1e9")
    for wrong in ("ece", "ece=0.1", "ece>", "ece>nan", "ece>0.1.2", ">0.1", "organ:ece>0.1"):
        with pytest.raises(ValueError, match="--fail-if"):
            parse_rule(wrong)
    with pytest.raises(ValueError, match="dsc has no region"):
        parse_rule("foreground:dsc<0.99")
    with pytest.raises(ValueError, match="Did you mean 'cece'"):
        parse_rule("ceces>0.1")


def test_a_missed_organ_does_not_pass_a_rule_on_distances(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    path = probs / "case_000.npy"
    nothing = np.zeros_like(np.load(path))
    nothing[0] = 1
    np.save(path, nothing)
    found = audit_predictions({"net": probs}, labels, tmp_path / "out")
    (line,) = check_rules(found.networks, [parse_rule("hd95>1000")])
    assert "hd95 is undefined in 2 of 4 values" in line


def test_only_an_audit_is_replaced_and_never_an_input(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    probs = write_predictions(tmp_path / "probs", "npy", 1)
    out = tmp_path / "out"
    audit_predictions({"a": probs}, labels, out)
    audit_predictions({"a": probs}, labels, out, overwrite=True)

    def refused(problem: str, *networks: Path, **options: Any) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(PathError, match=problem):
            audit_predictions({str(n): n for n in networks}, labels, out, overwrite=True, **options)
        assert sorted(tmp_path.rglob("*")) == before

    refused("holds the input", write_predictions(out / "preds", "npy", 1))
    refused("holds the input", out)
    refused("holds the input", probs, images=out / "images")
    study = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(json.dumps({**study, "kind": "benchmark"}))
    refused("is not an audit", probs)
    (out / "study.json").write_text("{}")
    refused("is not a study", probs)


def test_an_audit_that_was_stopped_before_its_page_names_the_command(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    probs = write_predictions(tmp_path / "probs", "npy", 1)
    out = tmp_path / "my audit"
    audit_predictions({"a": probs}, labels, out)
    with pytest.raises(PathError, match=f"segcal report '{out}'"):
        audit_predictions({"a": probs}, labels, out)
    write_report(out)
    with pytest.raises(PathError, match="holds an audit already"):
        audit_predictions({"a": probs}, labels, out)


def test_probabilities_given_as_logits_are_refused(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    with pytest.raises(ValueError, match=r"case_000.npy: Expected .* look like probabilities"):
        audit_predictions({"a": probs}, labels, tmp_path / "out", logits=True)
    assert not (tmp_path / "out").exists()
    files = ("--labels", labels, "--out", tmp_path / "out")
    done = command("audit", "--logits", probs, *files)
    assert done.returncode == 2
    assert "use --probs instead of --logits" in done.stderr
    assert "from_probs" not in done.stderr
    for given in ((), ("--probs", probs, "--logits", probs)):
        assert "either --probs FOLDER or --logits FOLDER" in command("audit", *given, *files).stderr


def test_percent_and_sigmoid_outputs_have_a_remedy_of_the_command_line(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    probs = write_predictions(tmp_path / "probs", "npy", 1)
    file = probs / "case_000.npy"
    values = np.load(file)
    for wrong, remedy in ((100 * values, "divide them by 100"), (0.8 * values, "--heads")):
        np.save(file, wrong)
        done = command("audit", "--probs", probs, "--labels", labels, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert remedy in done.stderr
        assert "evaluate_heads" not in done.stderr


@pytest.mark.filterwarnings("ignore:All .* voxels have probabilities")
def test_a_second_softmax_is_named_in_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    for path, twice in ((tmp_path / "once", False), (tmp_path / "twice", True)):
        for file in probs.iterdir() if twice else ():
            np.save(file, softmax(np.load(file)).astype(np.float32))
        given = ("audit", "--probs", probs, "--labels", labels, "--out", path)
        done = CliRunner().invoke(app, [*map(str, given)], catch_exceptions=False)
        page = (path / "report" / "index.html").read_text(encoding="utf-8")
        assert ("was softmax applied twice?" in done.stdout) == twice
        assert ("whether softmax was applied twice" in page) == twice


def test_cases_left_out_of_a_limit_are_counted(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    write_nifti(labels / "case_000.nii.gz", np.zeros((10, 16, 14), np.uint8))
    probs = write_predictions(tmp_path / "probs", "npy", 2)
    found = audit_predictions({"net": probs}, labels, tmp_path / "out")
    assert found.has_spacing
    (line,) = check_rules(found.networks, [parse_rule("foreground:ece>0")])
    assert "(1 cases without such voxels skipped)" in line


def test_distances_without_a_voxel_size_are_in_voxels(tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    np.save(labels / "case_000.npy", blobs(0)[1])
    probs = write_predictions(tmp_path / "probs", "npy", 1)
    assert not audit_predictions({"net": probs}, labels, tmp_path / "out").has_spacing


def test_the_number_of_jobs_changes_nothing(files: Path, tmp_path: Path) -> None:
    networks = {"sure": files / "sure", "good": files / "good"}
    for jobs in (1, 2):
        audit_predictions(networks, files / "labels", tmp_path / str(jobs), jobs=jobs)
    tables = [p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*.csv")]
    assert len(tables) == 4  # of two networks, of both together, and ranks
    for name in tables:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    for name in ("bins.npz", "slices.npz"):
        one, two = (np.load(next((tmp_path / n).rglob(name))) for n in "12")
        assert one.files == two.files
        for key in one.files:
            np.testing.assert_array_equal(one[key], two[key])


def test_an_invalid_case_is_named_by_its_file_in_every_process(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "sure", tmp_path / "probs")
    bad = tmp_path / "probs" / "case_002.npz"
    np.savez(bad, probabilities=np.load(bad)["probabilities"] * 3)
    for jobs in (1, 2):
        with pytest.raises(ValueError, match=r"case_002\.npz: Expected"):
            audit_predictions(
                {"n": tmp_path / "probs"}, files / "labels", tmp_path / "out", jobs=jobs
            )
    assert not (tmp_path / "out").exists()


def test_a_killed_audit_continues(files: Path, tmp_path: Path) -> None:
    networks, labels = {"net": files / "sure"}, files / "labels"
    whole = audit_predictions(networks, labels, tmp_path / "whole")
    out, kept = tmp_path / "out", tmp_path / ".out.measured"
    process = subprocess.Popen(
        [sys.executable, "-m", "segcal", "audit", "--probs", str(files / "sure"), "--labels",
         str(labels), "--name", "net", "--out", str(out)],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not list(kept.glob("net/*.npz")) and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()
    if not kept.exists():
        pytest.skip("the audit ended before it could be killed")
    stored = sorted(kept.glob("net/*.npz"))
    assert not out.exists()
    stored[0].write_bytes(stored[0].read_bytes()[:100])  # damaged: measured again
    again = audit_predictions(networks, labels, out)
    assert again.reused == len(stored) - 1
    for name in ("cases.csv", "bins.npz", "slices.npz"):
        first, second = (a.networks["net"].path(name).read_bytes() for a in (whole, again))
        assert first == second
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def test_a_case_is_measured_again_if_a_file_or_an_option_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(3))
    calls = []

    def measure() -> Any:
        calls.append(1)
        logits, target = blobs(0)
        result = evaluate_case(softmax(logits), target, 1.0, case="a")
        return result, {"image": np.arange(4, dtype=np.uint8)}

    def run(*settings: object) -> Any:
        return KeptCase(tmp_path / "kept.npz", key_of([path], *settings)).measure(measure)

    first, second = run(1), run(1)
    assert len(calls) == 1
    assert [repr(r) for r in first[0].rows] == [repr(r) for r in second[0].rows]
    assert {*first[1]} == {*second[1]}
    run(2)
    assert len(calls) == 2
    os.utime(path, ns=(1, 1))
    run(2)
    assert len(calls) == 3


def test_kept_results_of_sigmoid_heads_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    heads = {"whole": (1, 2), "core": (2,)}
    probs, target = rng.random((2, 4, 5, 6), np.float32), rng.integers(0, 3, (4, 5, 6))
    kept = KeptCase(tmp_path / "kept.npz", "key")
    first = kept.measure(lambda: (evaluate_heads(probs, target, 1.0, case="a", heads=heads), {}))
    second = kept.measure(lambda: pytest.fail("it was measured again"))
    assert [repr(r) for r in first[0].rows] == [repr(r) for r in second[0].rows]
    assert list(second[0].heads) == ["whole", "core"]
    for head, result in first[0].heads.items():
        for region, each in result.statistics.items():
            same = second[0].heads[head].statistics[region].state()
            assert all(np.array_equal(array, same[name]) for name, array in each.state().items())
    pooled = [pool_cases([result]) for result, _ in (first, second)]
    assert [repr(r) for r in pooled[0]] == [repr(r) for r in pooled[1]]


def test_a_structure_that_no_label_map_contains(files: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    for path in (files / "labels").iterdir():
        image = nib.load(path)
        values = np.asarray(image.dataobj)
        nib.save(
            nib.Nifti1Image(np.where(values == 2, 0, values), image.affine), labels / path.name
        )
    for given, warning in ((labels, "no label map contains right;"), (files / "labels", "")):
        base = ("--probs", files / "good", "--labels", given)
        names = ("--classes", "background,left,right")
        done = CliRunner().invoke(
            app, [str(a) for a in ("audit", *base, *names, "--out", tmp_path / f"a{len(warning)}")]
        )
        assert warning in done.output
        assert bool(warning) == ("no label map" in done.output)
        fit = ("calibrate", *base, "--out", tmp_path / f"{len(warning)}.json", "--folds", 0)
        done = CliRunner().invoke(app, [str(a) for a in fit])
        assert bool(warning) == ("no label map contains class 2;" in done.output)
