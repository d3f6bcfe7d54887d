"""`segcal evaluate RUN --data OTHER`: external sets, both grids, calibrators, training scans."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from helpers.runs import settings
from helpers.trees import run_cli, save
from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.data import (
    FolderSource,
    axis_codes,
    open_dataset,
    prepare,
    read_labels,
    read_scan,
    reorient,
)
from segcal.evaluation import (
    audit_predictions,
    evaluate_run,
    open_run,
    predict_case,
    predict_volumes,
    read_evaluation,
)
from segcal.metrics import evaluate_case
from segcal.posthoc import load_calibrator
from segcal.report import write_report
from segcal.training import train

ORIGINAL = EvaluationConfig(grid="original")


def tree(root: Path, cases: int, shape: tuple[int, int, int], seed: int, codes: str) -> Path:
    """Discs whose brightness shows their class, stored in some orientation."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]), indexing="ij")
    for number in range(cases):
        center = rng.uniform(-0.3, 0.3, 2)
        distance = np.hypot(x - center[0], y - center[1])[..., None].repeat(shape[2], 2)
        label = (distance < 0.6).astype(np.uint8) + (distance < 0.3)
        image = (40 * label + rng.normal(100, 25, shape)).astype(np.float32)
        for kind, array in (("images", image), ("labels", label)):
            path = save(root / kind / f"{root.name}{number}.nii.gz", array, np.diag([1, 1, 4, 1]))
            turned = nib.load(path)
            turn = nib.orientations.ornt_transform(
                nib.io_orientation(turned.affine), nib.orientations.axcodes2ornt(codes)
            )
            nib.save(turned.as_reoriented(turn), path)
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`own` and `other` (larger, other orientation, one scan of `own` copied into it), prepared."""
    root = tmp_path_factory.mktemp("sets")
    tree(root / "own", 10, (28, 30, 3), 0, "RAS")
    tree(root / "other", 3, (36, 40, 2), 1, "LPI")
    prepare(FolderSource(root / "own", classes="ring,core"), root / "p_own")
    seen = open_dataset(root / "p_own").part("train")[0].name
    for kind in ("images", "labels"):
        shutil.copy(root / "own" / kind / f"{seen}.nii.gz", root / "other" / kind / "again.nii.gz")
    source = FolderSource(root / "other", classes="Ring,core")
    prepare(source, root / "p_other", recipe="native")
    return root


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    train(settings(place / "p_own", epochs=4, optimizer={"lr": 0.02}), place / "trained")
    return place / "trained"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_preparation_of_the_run_is_applied(run: Path, place: Path) -> None:
    own = evaluate_run(run)
    before = own.path("cases.csv").read_bytes()
    with pytest.warns(UserWarning, match=r"1 of these scans \(again\)"):
        found = evaluate_run(run, data=place / "p_other")
    assert found.folder == run / "external" / "p_other"
    assert (found.info.external, found.info.split, found.info.grid) == (True, "all", "prepared")
    assert found.info.seen == ("again",)
    assert own.path("cases.csv").read_bytes() == before
    assert (own.info.external, own.info.seen) == (False, ())
    table = found.table()
    assert set(table["dataset"]) == {"p_other"}
    assert set(table["case"]) == {"again", "other0", "other1", "other2", "pooled"}
    # As `segcal predict` reads a scan: turned to the training set's orientation, on its grid.
    opened = open_run(run)
    path = place / "other" / "images" / "other1.nii.gz"
    scan = read_scan([path], opened.data_info, "RAS")
    labels, header = read_labels(place / "other" / "labels" / "other1.nii.gz")
    codes = axis_codes(header.affine)
    assert (codes, scan.image.shape) == ("LPI", (1, 2, 32, 32))
    target = scan.grid.apply_labels(reorient(labels, codes, "RAS"))
    network = opened.network("best", torch.device("cpu"))
    probs = predict_case(network, torch.from_numpy(scan.image)).probs
    rows = evaluate_case(
        probs, target, scan.grid.spacing_mm, case="other1",
        groups={"ring": [1], "core": [2]},
    ).rows  # fmt: skip
    ours = table[table["case"] == "other1"].set_index(["label", "region", "metric"])["value"]
    assert len(rows) > 50
    for row in rows:
        np.testing.assert_equal(ours[row.label, row.region, row.metric], row.value)


def test_the_original_grid_is_that_of_predict_and_audit(
    run: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (("own", None), ("other", place / "p_other")):
        said: list[str] = []
        found = evaluate_run(run, data=data, config=ORIGINAL, say=said.append)
        scans = tmp_path / name
        for case in found.info.case_names:
            for kind in ("images", "labels"):
                file = place / name / kind / f"{case}.nii.gz"
                (scans / kind).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, scans / kind / file.name)
        maps, warned = scans / "maps", list[str]()
        predict_volumes([run], scans / "images", maps, outputs=["probs"], warn=warned.append)
        audited = audit_predictions(
            {"net": maps}, scans / "labels", scans / "audit", classes=("background", "ring", "core")
        )
        (audit,) = audited.networks.values()
        assert (found.info.grid, audit.info.grid) == ("original", "original")
        for region in ("all", "boundary"):
            for metric in ("ece", "cece", "nll", "dsc", "hd95_mm", "signed_gap"):
                expected = audit.means(region)[metric]
                assert found.means(region)[metric] == pytest.approx(expected, rel=1e-4), metric
        prepared = evaluate_run(run, data=data, overwrite=True, say=said.append)
        # The other scans are larger than the network's grid and cropped; padding does not count.
        same = prepared.means()["ece"] == pytest.approx(found.means()["ece"], rel=1e-4)
        assert same == (name == "own")
        # The copied scan is named once, by each command.
        seen = ("again",) if name == "other" else ()
        assert found.info.seen == audit.info.seen == audited.seen == seen
        assert (len(said), len(warned)) == (2 * len(seen), len(seen))
        page = write_report(scans / "audit").read_text()
        warning = "net: was trained, validated or calibrated on 1 of these scans (again)"
        assert (warning in page) == bool(seen)


def test_training_scans_are_named(
    run: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hashes = json.loads((run / "run.json").read_text())["voxels_sha256"]
    dataset = open_dataset(place / "p_own")
    assert hashes["train"] == {
        case.name: case.properties.voxels_sha256 for case in dataset.part("train")
    }
    # The hash does not depend on the preparation.
    again = open_dataset(place / "p_other")["again"].properties
    assert again.voxels_sha256 in hashes["train"].values()
    assert run_cli(monkeypatch, "evaluate", run, "--split", "train") == 0
    assert "was trained" not in capfd.readouterr().err
    images = ("--input", place / "own" / "images", "--out", tmp_path / "maps", "--output", "probs")
    for _ in range(2):  # also where the maps exist already
        assert run_cli(monkeypatch, "predict", run, *images) == 0
        (line,) = capfd.readouterr().err.splitlines()
        assert "8 of these scans (" in line
        assert ", …)" in line
    options = ("--labels", place / "own" / "labels", "--out", tmp_path / "audit")
    assert run_cli(monkeypatch, "audit", "--probs", tmp_path / "maps", *options) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "8 of these scans" in line
    # A fit names the scans of the training alone: validation scans are what it should be given.
    trained = len(dataset.part("train"))
    options = ("--probs", tmp_path / "maps", "--labels", place / "own" / "labels", "--out")
    for command in (["calibrate"], ["assure", "fit"]):
        assert run_cli(monkeypatch, *command, *options, tmp_path / "fit.json", "--overwrite") == 0
        err = capfd.readouterr().err
        assert f"trained on {trained} of these scans" in err


def test_an_external_evaluation_is_reused(run: Path, place: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = evaluate_run(run, data=place / "p_other", say=said.append)
    again = evaluate_run(run, data=place / "p_other", say=said.append)
    assert (again, again.reused) == (first, True)
    assert len(said) == 2  # also a reused evaluation names the training scan
    for change, words in (
        ({"config": ORIGINAL}, "grid 'prepared'"),
        ({"split": "test"}, "split 'all'"),
    ):
        with pytest.raises(PathError, match=rf"{words}; pass --overwrite"):
            evaluate_run(run, data=place / "p_other", **change)  # type: ignore[arg-type]
    fewer = shutil.copytree(place / "other", tmp_path / "tree")
    (fewer / "images" / "again.nii.gz").unlink()
    (fewer / "labels" / "again.nii.gz").unlink()
    prepare(FolderSource(fewer, classes="ring,core"), tmp_path / "p_other")
    with pytest.raises(PathError, match="other data; pass --overwrite"):
        evaluate_run(run, data=tmp_path / "p_other")
    found = evaluate_run(run, data=tmp_path / "p_other", split="test", overwrite=True)
    splits = open_dataset(tmp_path / "p_other").splits
    assert (found.info.case_names, found.info.seen) == (tuple(splits.test), ())


def test_source_files_are_needed_only_for_another_preparation(
    run: Path, place: Path, tmp_path: Path
) -> None:
    scans = tree(tmp_path / "scans", 2, (28, 30, 3), 5, "RAS")
    prepare(FolderSource(scans, classes="ring,core"), tmp_path / "same")
    prepare(FolderSource(scans, classes="ring,core"), tmp_path / "native", recipe="native")
    before = evaluate_run(run, data=tmp_path / "native").table()
    content = (scans / "labels" / "scans0.nii.gz").read_bytes()
    (scans / "labels" / "scans0.nii.gz").write_bytes(content + b" ")
    with pytest.raises(PathError, match=r"native: the source files of case scans0 are missing or"):
        evaluate_run(run, data=tmp_path / "native", overwrite=True)
    shutil.rmtree(scans)
    stored = evaluate_run(run, data=tmp_path / "same").table()
    assert set(stored["dataset"]) != set(before["dataset"])
    np.testing.assert_array_equal(stored["value"], before["value"])
    with pytest.raises(PathError, match=r"native: cannot be read again \(.*scans"):
        evaluate_run(run, data=tmp_path / "native", overwrite=True)
    about = (tmp_path / "native" / "dataset.yaml").read_text()
    (tmp_path / "native" / "dataset.yaml").write_text(about.split("origin:")[0] + "fingerprint: x")
    with pytest.raises(PathError, match=r"native: does not record which files"):
        evaluate_run(run, data=tmp_path / "native", overwrite=True)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ("ring", "p: has the classes background, ring, but .*run has background, ring, core; "),
        (
            "core,ring",
            "p: has the classes background, core, ring, but .*; prepare it with the same",
        ),
    ],
)
def test_other_classes_are_refused(run: Path, tmp_path: Path, classes: str, words: str) -> None:
    scans = tree(tmp_path / "scans", 1, (8, 8, 1), 5, "RAS")
    if classes == "ring":
        path = scans / "labels" / "scans0.nii.gz"
        label = np.asarray(nib.load(path).dataobj) > 0
        save(path, label.astype(np.uint8), np.diag([1, 1, 4, 1]))
    prepare(FolderSource(scans, classes=classes), tmp_path / "p")
    with pytest.raises(PathError, match=words):
        evaluate_run(run, data=tmp_path / "p")
    assert not (run / "external").exists()


def test_other_channels_are_refused(run: Path, tmp_path: Path) -> None:
    scans = tree(tmp_path / "scans", 1, (8, 8, 1), 5, "RAS")
    image = scans / "images" / "scans0.nii.gz"
    image.rename(scans / "images" / "scans0_0000.nii.gz")
    shutil.copy(scans / "images" / "scans0_0000.nii.gz", scans / "images" / "scans0_0001.nii.gz")
    prepare(FolderSource(scans, classes="ring,core"), tmp_path / "p")
    words = "has the channels channel 0, channel 1, but .* has channel 0;"
    with pytest.raises(PathError, match=words):
        evaluate_run(run, data=tmp_path / "p")


def test_with_a_calibrator(
    run: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ("evaluate", run, "--data", place / "p_other", "--calibrator")
    assert run_cli(monkeypatch, *arguments, "temperature") == 0
    shown = capfd.readouterr()
    assert "4 external cases" in shown.out
    assert "prepared grid" in shown.out
    folder = run / "calibrated" / "temperature" / "external" / "p_other"
    found = read_evaluation(folder)
    assert found is not None
    assert found.info.method == f"{open_run(run).config.loss.name}+temperature"
    fitted = load_calibrator(run / "calibrator_temperature.json")
    plain = evaluate_run(run, data=place / "p_other", say=lambda line: None)
    assert found.means()["dsc"] == plain.means()["dsc"]
    assert found.means()["nll"] != plain.means()["nll"]
    # A file gives the same numbers; another temperature is another calibrator.
    content = json.loads((run / "calibrator_temperature.json").read_text())
    (tmp_path / "same.json").write_text(json.dumps(content))
    assert run_cli(monkeypatch, *arguments, tmp_path / "same.json") == 0
    assert "is up to date" in capfd.readouterr().out
    content["params"]["temperature"] *= 2
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert run_cli(monkeypatch, *arguments, tmp_path / "other.json") == 2
    assert "was computed with another calibrator; pass --overwrite" in capfd.readouterr().err
    own = evaluate_run(run, calibrator="temperature")
    assert own.folder == run / "calibrated" / "temperature"
    assert own.info.calibrator is not None
    assert own.info.calibrator["params"] == fitted.params()
    content["num_classes"] = 7
    (tmp_path / "seven.json").write_text(json.dumps(content))
    with pytest.raises(PathError, match=r"seven\.json: was fitted on 7 classes, but .*ring, core"):
        evaluate_run(run, calibrator=tmp_path / "seven.json")
