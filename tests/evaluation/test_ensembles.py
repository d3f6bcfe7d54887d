"""Folds and ensembles: `train --folds`, and what evaluate, predict and calibrate do with them."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from helpers.runs import phantom, same, settings, weights
from helpers.trees import blob, run_cli, save, scan
from segcal.config import to_yaml
from segcal.data import PhantomSource, open_dataset, prepare
from segcal.evaluation import evaluate_run, open_run, predict_case, predict_volumes
from segcal.metrics import evaluate_case, predicted_labels
from segcal.posthoc import TemperatureScaling, load_calibrator
from segcal.study import epochs_done

FOLDS = 5


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", cases=14, size=32, slices=4)


@pytest.fixture(scope="module")
def config(data: Path) -> Path:
    path = data.parent / "config.yaml"
    path.write_text(to_yaml(settings(data, epochs=8, optimizer={"lr": 0.03})))
    return path


@pytest.fixture(scope="module")
def folds(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "cv"
    with pytest.MonkeyPatch.context() as patch:
        assert run_cli(patch, "train", "--config", config, "--folds", "all", "--out", out) == 0
    return out


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    save(folder / "a.nii.gz", scan((32, 32, 4), 3), np.diag([1.5, 1.5, 5, 1]))
    return folder


def read_map(folder: Path, what: str) -> np.ndarray:
    return np.asarray(nib.load(folder / f"a_{what}.nii.gz").dataobj)


def test_one_run_per_fold(folds: Path, data: Path) -> None:
    runs = [open_run(folds / f"fold{k}") for k in range(FOLDS)]
    assert [run.config.data.fold for run in runs] == list(range(FOLDS))
    splits = open_dataset(data).splits
    held = [name for run in runs for name in run.info.cases["val"]]
    assert sorted(held) == sorted((*splits.train, *splits.val))
    assert not set(held) & set(splits.test)


TOGETHER = ("--jobs", 2, "--launcher")


@pytest.mark.parametrize(
    "together",
    [(), (*TOGETHER, "local"), pytest.param((*TOGETHER, "ray"), marks=pytest.mark.slow)],
    ids=["one after the other", "together", "on Ray"],
)
def test_resume_continues_where_folds_are_missing(
    folds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: tuple[object, ...]
) -> None:
    """Also without --data: folds that were not started have the settings of the others."""
    if "ray" in together:
        pytest.importorskip("ray")
        together = (*together, "--address", "local")
    copied = tmp_path / "cv"
    shutil.copytree(folds, copied)
    shutil.rmtree(copied / "fold3")
    before = (copied / "fold0" / "last.pt").stat().st_mtime_ns
    assert (
        run_cli(monkeypatch, "train", "--out", copied, "--folds", "0,3", "--resume", *together) == 0
    )
    assert not together or "val dsc" in (copied / "fold3.log").read_text()
    assert (copied / "fold0" / "last.pt").stat().st_mtime_ns == before
    assert epochs_done(copied / "fold0") == 8
    for k in (0, 3):
        assert same(*(weights(root / f"fold{k}" / "last.pt") for root in (folds, copied)))


def test_invalid_folds(
    data: Path,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def error(*arguments: object) -> str:
        assert run_cli(monkeypatch, "train", "--config", config, *arguments) == 2
        return capsys.readouterr().err.strip()

    for wrong in ("5", "0,x", ""):
        line = error("--folds", wrong, "--out", tmp_path / "new")
        expected = "expected all, or numbers from 0 separated by commas"
        assert line == f"segcal: --folds {wrong}: {expected}; {data} has 5 folds"
    assert not (tmp_path / "new").exists()
    line = error("--jobs", 2, "--out", tmp_path / "new")
    assert line.endswith("need --folds; one training on several GPUs: torchrun")
    (tmp_path / "some" / "fold2").mkdir(parents=True)
    line = error("--folds", "0,2", "--out", tmp_path / "some")
    assert line.endswith("fold2: exists already; continue it with --resume")
    assert not (tmp_path / "some" / "fold0").exists()
    plain = tmp_path / "plain"
    prepare(PhantomSource(cases=6, size=32, slices=4), plain, dtype="uint8", workers=1, folds=0)
    line = error("--data", plain, "--folds", "all", "--out", tmp_path / "new")
    assert line.endswith(f"{plain} has 0 folds")


def test_evaluation_of_the_average(
    folds: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli(monkeypatch, "evaluate", folds) == 0
    found = evaluate_run(folds)
    assert found.reused
    assert found.folder == folds
    assert found.info.method.endswith("_ensemble")
    dataset = open_dataset(data)
    case = dataset.part("test")[0]
    assert found.info.case_names == dataset.splits.test
    image = torch.from_numpy(case.image())
    networks = [open_run(folds / f"fold{k}").network("best", image.device) for k in range(FOLDS)]
    each = torch.stack([predict_case(network, image).probs for network in networks])
    rows = evaluate_case(
        each.mean(0), case.target(), case.spacing_mm, case=case.name, true_probs=case.truth(),
        members=np.stack([predicted_labels(probs) for probs in each]),
        groups={name: (k,) for k, name in dataset.classes.items() if k},
    ).rows  # fmt: skip
    table = found.table()
    ours = table[table["case"] == case.name].set_index(["label", "region", "metric"])["value"]
    for row in rows:
        np.testing.assert_allclose(
            ours[row.label, row.region, row.metric], row.value, rtol=1e-6, err_msg=str(row)
        )
    assert "pairwise_dice" in {row.metric for row in rows}
    # Two of the runs, in another folder; other members are another evaluation.
    pair = [folds / "fold0", folds / "fold1"]
    with pytest.raises(ValueError, match="--out is required"):
        evaluate_run(pair)
    two = evaluate_run(pair, out=tmp_path / "two")
    assert two.info.run == "two"
    assert evaluate_run(pair, out=tmp_path / "two").reused
    with pytest.raises(ValueError, match="was computed with another checkpoint"):
        evaluate_run([folds / "fold0", folds / "fold2"], out=tmp_path / "two")
    # No case is in the validation part of both.
    with pytest.raises(ValueError, match="to have cases, but got none"):
        evaluate_run(pair, split="val", out=tmp_path / "two")
    # A network of its own has no pairs.
    alone = evaluate_run(folds / "fold0", out=tmp_path / "one").table()
    assert "pairwise_dice" not in set(alone["metric"])


def test_members_of_other_data_are_refused(folds: Path, tmp_path: Path) -> None:
    other = phantom(tmp_path / "data", cases=8, size=32, slices=4)
    copied = tmp_path / "run"
    shutil.copytree(folds / "fold0", copied)
    info = json.loads((copied / "run.json").read_text())
    info["data_fingerprint"] = open_dataset(other).fingerprint
    (copied / "run.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match="was trained on other data than"):
        evaluate_run([folds / "fold1", copied], out=tmp_path / "out")


def test_disagreement_maps(
    folds: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs, out = [folds / f"fold{k}" for k in (0, 1, 4)], tmp_path / "out"
    each = []
    for run in runs:
        predict_volumes([run], images, tmp_path / run.name, outputs=["probs"])
        each.append(np.moveaxis(read_map(tmp_path / run.name, "probs"), -1, 0).astype(float))
    asked = [x for what in ("probs", "variance", "mutual_information") for x in ("--output", what)]
    where = ("--input", images, "--out", out)
    assert run_cli(monkeypatch, "predict", *runs, *where, *asked) == 0
    members = np.stack(each)
    mean = members.mean(0)
    np.testing.assert_allclose(read_map(out, "probs"), np.moveaxis(mean, 0, -1), atol=1e-6)
    np.testing.assert_allclose(read_map(out, "variance"), members.var(0).mean(0), atol=1e-6)
    spread = (members * np.log(members)).sum(1).mean(0) - (mean * np.log(mean)).sum(0)
    np.testing.assert_allclose(read_map(out, "mutual_information"), spread, atol=1e-5)
    labels = members.argmax(1)
    with (out / "pairwise_dice.csv").open() as file:
        rows = list(csv.DictReader(file))
    classes = open_run(runs[0]).data_info.classes
    expected = {}
    for k in range(1, len(classes)):
        dice = []
        for a, b in ((0, 1), (0, 2), (1, 2)):
            one, two = labels[a] == k, labels[b] == k
            size = one.sum() + two.sum()
            dice.append(2 * (one & two).sum() / size if size else 1.0)
        expected[classes[k]] = np.mean(dice)
    assert min(expected.values()) < 0.99
    expected["mean"] = np.mean(list(expected.values()))
    assert {row["structure"]: float(row["dice"]) for row in rows} == pytest.approx(
        expected, abs=1e-6
    )
    assert {row["case"] for row in rows} == {"a"}
    # A single run has no disagreement; its maps replace the rows of the ensemble.
    assert run_cli(monkeypatch, "predict", runs[0], *where, *asked) == 2
    assert "--output variance: needs several runs" in capsys.readouterr().err
    predict_volumes(runs[:1], images, out, outputs=["probs"], overwrite=True)
    assert (out / "pairwise_dice.csv").read_text() == "case,structure,dice\n"


def test_calibrator_of_out_of_fold_predictions(
    folds: Path,
    data: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(monkeypatch, "calibrate", folds) == 0
    shown = capsys.readouterr().out
    fitted = load_calibrator(folds / "calibrator_temperature.json")
    assert isinstance(fitted, TemperatureScaling)
    dataset = open_dataset(data)
    held_out = []
    for k in range(FOLDS):
        network = open_run(folds / f"fold{k}").network("best", torch.device("cpu"))
        for case in dataset.part("val", k):
            logits = predict_case(network, torch.from_numpy(case.image())).logits
            held_out.append((logits, case.target()))
    by_hand = TemperatureScaling().fit(held_out)
    assert fitted.temperature == pytest.approx(by_hand.temperature, rel=1e-6)
    assert fitted.report is not None
    assert fitted.report.cases == len(dataset.splits.train) + len(dataset.splits.val)
    assert f"fitted on {fitted.report.cases} cases" in shown
    assert fitted.about["cross_validation"] is not None
    # Each member is calibrated, then they are averaged; the stored calibrator is used again.
    stamp = (folds / "calibrator_temperature.json").stat().st_mtime_ns
    options = ("--input", images, "--out", tmp_path / "out", "--calibrator", "temperature")
    assert run_cli(monkeypatch, "predict", folds, *options) == 0
    assert (folds / "calibrator_temperature.json").stat().st_mtime_ns == stamp
    found = evaluate_run(folds, calibrator="temperature")
    assert (found.folder, found.info.method[-12:]) == (
        folds / "calibrated" / "temperature",
        "+temperature",
    )
    each = []
    for k in range(FOLDS):
        run = folds / f"fold{k}"
        file = folds / "calibrator_temperature.json"
        predict_volumes([run], images, tmp_path / run.name, calibrator=file)
        each.append(read_map(tmp_path / run.name, "probs"))
    probs = read_map(tmp_path / "out", "probs")
    np.testing.assert_allclose(probs, np.mean(each, axis=0), atol=1e-6)
    np.testing.assert_array_equal(read_map(tmp_path / "out", "confidence"), probs.max(-1))
    np.testing.assert_array_equal(read_map(tmp_path / "out", "labels"), probs.argmax(-1))
    # A calibrator that needs the voxel size, fitted for one run.
    predict_volumes([folds / "fold2"], images, tmp_path / "far", calibrator="distance")
    assert (folds / "fold2" / "calibrator_distance.json").is_file()
    plain = predict_volumes([folds / "fold2"], images, tmp_path / "plain").written
    np.testing.assert_array_equal(read_map(tmp_path / "far", "labels"), nib.load(plain[0]).dataobj)
    assert not np.allclose(
        read_map(tmp_path / "far", "entropy"), read_map(tmp_path / "plain", "entropy")
    )
    # A calibrated map is another map.
    capsys.readouterr()
    assert run_cli(monkeypatch, "predict", folds, *options[:4]) == 2
    assert "exists already, predicted with other settings" in capsys.readouterr().err
    with pytest.raises(ValueError, match="vector: is no file; "):
        predict_volumes(
            [folds / "fold0", folds / "fold1"], images, tmp_path / "new", calibrator="vector"
        )


def test_calibrate_one_run(
    folds: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, file = folds / "fold1", tmp_path / "t.json"
    arguments = ("calibrate", run, "--method", "vector", "--out", file)
    assert run_cli(monkeypatch, *arguments, "--folds", 2, "--region", "union") == 0
    fitted = load_calibrator(file)
    assert fitted.about["cases"] == list(open_run(run).info.cases["val"])
    assert fitted.about["region"] == "union"
    capsys.readouterr()
    assert run_cli(monkeypatch, *arguments) == 2
    assert "t.json: exists already; pass --overwrite" in capsys.readouterr().err
    for wrong, problem in (
        ((run, "--probs", tmp_path), "give either RUN, or --probs or --logits with --labels"),
        (("--probs", tmp_path), "give a RUN, or --probs or --logits with --labels and --out"),
        ((tmp_path,), f"{tmp_path}: is not a run; give the folder that `segcal train` wrote"),
    ):
        assert run_cli(monkeypatch, "calibrate", *wrong) == 2
        assert capsys.readouterr().err.strip() == f"segcal: {problem}"


def test_train_on_a_raw_nnunet_set(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = tmp_path / "Dataset007_Toy"
    for number in range(5):
        for channel in (0, 1):
            image = scan((32, 32, 3), 2 * number + channel)
            save(raw / "imagesTr" / f"toy{number}_{channel:04d}.nii.gz", image)
        save(raw / "labelsTr" / f"toy{number}.nii.gz", blob((32, 32, 3), (1, 2)))
    about = {"channel_names": {"0": "T1", "1": "T2"}, "labels": {"background": 0, "a": 1, "b": 2}}
    (raw / "dataset.json").write_text(json.dumps({**about, "file_ending": ".nii.gz"}))
    out = tmp_path / "runs" / "toy"
    command = ("train", "--config", config, "--nnunet-raw", raw, "--out", out)
    assert run_cli(monkeypatch, *command, "--epochs", 1) == 0
    assert "Dataset007_Toy" in capsys.readouterr().out
    run = open_run(out)
    assert run.info.dataset == "Dataset007_Toy"
    assert Path(run.config.data.path) == (tmp_path / "runs" / "Dataset007_Toy_prepared").resolve()
    assert run.data_info.channels == ("T1", "T2")
    assert run_cli(monkeypatch, *command, "--data", tmp_path) == 2
    assert capsys.readouterr().err.strip() == "segcal: give either --data or --nnunet-raw"
    for path in list((raw / "imagesTr").iterdir()) + list((raw / "labelsTr").iterdir()):
        path.rename(path.with_name(path.name.replace("toy", "patient1_")))
    assert run_cli(monkeypatch, *command[:-1], tmp_path / "b" / "run") == 2
    line = capsys.readouterr().err
    assert "look like scans of one patient; use `segcal prepare folder" in line
    assert "--patient" in line
