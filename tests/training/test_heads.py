"""Overlapping regions with sigmoid heads: training, evaluation, calibration and prediction."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from helpers.runs import phantom, settings
from helpers.trees import acdc_tree
from segcal.cli import app
from segcal.config import ConfigError, check_config
from segcal.core.heads import head_masks
from segcal.data import AcdcSource, Grid, open_dataset, prepare
from segcal.evaluation import (
    audit_predictions,
    evaluate_run,
    open_run,
    predict_case,
    predict_volumes,
)
from segcal.evaluation.predict import restore_probs
from segcal.metrics import evaluate_heads
from segcal.models import predict_logits
from segcal.posthoc import HeadCalibrator, load_calibrator
from segcal.stats import to_frame
from segcal.training import complete_config, train
from segcal.training.state import head_targets
from segcal.training.validate import Validator

HEADS = {"heart": (1, 2, 3), "left": (2, 3), "LV": (3,)}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return acdc_tree(tmp_path_factory.mktemp("acdc") / "training", patients=6)


@pytest.fixture(scope="module")
def data(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare(AcdcSource(source), folder, recipe="native", dtype="uint8", workers=1)
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "run"
    changes = {"data": {"heads": HEADS}, "loss": {"name": "ce", "dice_weight": 1.0}}
    train(settings(data, epochs=15, optimizer={"lr": 0.03}, **changes), folder)
    return folder


def test_targets_of_heads() -> None:
    target = torch.tensor([[[0, 1], [2, -100]]])
    wanted = [[[0, 1], [1, -100]], [[0, 0], [1, -100]]]
    found = head_targets(target, {"both": (1, 2), "second": (2,)})
    assert found.dtype == torch.int64
    assert found[0].tolist() == wanted


def test_settings(data: Path) -> None:
    config, _ = complete_config(settings(data, data={"heads": HEADS}))
    assert config.loss.options == {"activation": "sigmoid"}
    # Without regions in the data set, every class is a head.
    config, _ = complete_config(settings(data, loss={"options": {"activation": "sigmoid"}}))
    assert config.data.heads == {"RV": (1,), "MYO": (2,), "LV": (3,)}
    with pytest.raises(ValueError, match=r"`data.heads`: .* has no label 7; it has 1 RV"):
        complete_config(settings(data, data={"heads": {"x": [3, 7]}}))
    with pytest.raises(ConfigError, match="only without `heads`"):
        check_config({"data": {"heads": HEADS, "raters": "mean"}})
    adaptive = {"name": "ecp", "schedule": {"name": "error_driven"}}
    with pytest.raises(ValueError, match=r"`loss`: .* need exclusive classes"):
        train(settings(data, data={"heads": HEADS}, loss=adaptive), data.parent / "adaptive")


def test_heads_are_the_regions_of_the_data_set(data: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    text = (copy / "dataset.yaml").read_text()
    (copy / "dataset.yaml").write_text(text.replace("regions: {}", "regions: {both: [1, 3]}"))
    config, _ = complete_config(settings(copy, loss={"options": {"activation": "sigmoid"}}))
    assert config.data.heads == {"both": (1, 3)}


def test_validation_is_the_mean_over_heads(run: Path, data: Path) -> None:
    network = open_run(run).network("best", CPU)
    cases = open_dataset(data).part("test")
    scores = Validator(cases, 4, groups=HEADS, heads=True, device=CPU, batch_size=4).score(network)
    assert scores is not None
    for case, score in zip(cases, scores, strict=True):
        probs = predict_logits(network, torch.from_numpy(case.image())).sigmoid()
        rows = to_frame(
            evaluate_heads(probs, case.target(), case.spacing_mm, heads=HEADS, case="x").rows
        )
        rows = rows[rows["region"] == "all"].set_index(["metric", "label"])["value"]
        assert score.dsc == pytest.approx({name: rows["dsc", name] for name in HEADS})
        for metric in ("ece", "cece", "nll"):
            assert getattr(score, metric) == pytest.approx(rows[metric].mean(), rel=1e-4)


def test_learning_evaluation_and_calibration(run: Path) -> None:
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert list(last["val"]["dsc_by_label"]) == list(HEADS)
    assert last["val"]["dsc"] > 0.3
    evaluation = evaluate_run(run, device="cpu")
    assert evaluation.info.structures == tuple(HEADS)
    assert evaluation.info.labels == ("background", *HEADS)
    assert evaluation.means()["dsc"] > 0.3
    done = CliRunner().invoke(app, ["calibrate", str(run), "--method", "vector", "--folds", "0"])
    assert done.exit_code == 0, done.output
    file = run / "calibrator_vector.json"
    calibrator = load_calibrator(file)
    assert isinstance(calibrator, HeadCalibrator)
    assert calibrator.heads == HEADS
    assert calibrator.report is not None
    assert calibrator.report.nll_after < calibrator.report.nll_before
    after = evaluate_run(run, calibrator=file, device="cpu").means()
    assert after["nll"] != evaluation.means()["nll"]
    scaled = evaluate_run(run, calibrator="temperature", device="cpu").means()
    assert scaled["dsc"] == evaluation.means()["dsc"]


def test_predictions_are_recognized_by_an_audit(run: Path, source: Path, tmp_path: Path) -> None:
    case = open_dataset(open_run(run).config.data.path).part("test")[0]
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    original = next(source.rglob(f"{case.name}.nii.gz"))
    shutil.copy(original, folder)
    files = predict_volumes([run], folder, out, device="cpu").written
    maps = {path.name.split("_")[-1][:-7]: np.asarray(nib.load(path).dataobj).T for path in files}
    probs = maps["probs"]
    assert probs.shape == (3, *nib.load(original).shape[::-1])
    network = open_run(run).network("best", CPU)
    stored = predict_case(network, torch.from_numpy(case.image()), sigmoid=True).probs
    np.testing.assert_allclose(probs, stored, atol=1e-5)
    heart, left, lv = head_masks(probs)
    painted = np.where(lv, 3, np.where(left, 2, np.where(heart, 1, 0)))
    np.testing.assert_array_equal(maps["labels"], painted)
    np.testing.assert_array_equal(maps["confidence"], np.maximum(probs, 1 - probs).min(0))
    p = np.clip(probs, 1e-12, 1 - 1e-7).astype(np.float64)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum(0)
    np.testing.assert_allclose(maps["entropy"], entropy, atol=1e-4)
    labels = tmp_path / "labels"
    labels.mkdir()
    shutil.copy(original.with_name(f"{case.name}_gt.nii.gz"), labels / original.name)
    audited = audit_predictions({"net": out}, labels, tmp_path / "audit").networks["net"]
    assert audited.info.structures == tuple(HEADS)


def test_cropped_voxels_are_outside_of_every_region() -> None:
    grid = Grid(
        original_shape=(1, 1, 4), original_spacing_mm=(1.0, 1.0, 1.0),
        affine=((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
        resized_shape=(1, 1, 4), start=(0, 0, 1), shape=(1, 1, 2),
    )  # fmt: skip
    probs = torch.tensor([[0.9, 0.2], [0.4, 0.8]]).reshape(2, 1, 1, 2)
    found = restore_probs(grid, probs, heads=True)
    np.testing.assert_allclose(found[:, 0, 0], [[0, 0.9, 0.2, 0], [0, 0.4, 0.8, 0]])


def test_ensembles(run: Path, data: Path, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    changes = {"data": {"heads": HEADS}, "loss": {"name": "ce"}}
    train(settings(data, epochs=1, seed=1, optimizer={"lr": 0.03}, **changes), other)
    found = evaluate_run([run, other], out=tmp_path / "both", device="cpu")
    rows = found.table()
    assert set(rows[rows["metric"] == "pairwise_dice"]["label"]) == set(HEADS)
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(next(source.rglob("*_frame01.nii.gz")), folder / "x.nii.gz")
    written = predict_volumes(
        [run, other], folder, tmp_path / "out", outputs=["mutual_information"], device="cpu",
        warn=lambda line: None,
    ).written  # fmt: skip
    information = np.asarray(nib.load(written[0]).dataobj)
    assert 0 <= information.min() < information.max() <= 3 * np.log(2)
    dice = (tmp_path / "out" / "pairwise_dice.csv").read_text()
    assert [line.split(",")[1] for line in dice.splitlines()[1:]] == [*HEADS, "mean"]
    plain = tmp_path / "plain"
    train(settings(data, epochs=1), plain)
    with pytest.raises(ValueError, match=r"other `data\.heads`"):
        evaluate_run([run, plain], out=tmp_path / "mixed", device="cpu")


def test_readers(tmp_path: Path) -> None:
    folder = phantom(tmp_path / "data", cases=6, size=32, slices=4, raters=3)
    heads = {"organs": [1, 2], "liver": [1]}
    config = settings(folder, epochs=1, data={"heads": heads}, loss={"name": "ce"})
    train(config, tmp_path / "run")
    rows = evaluate_run(tmp_path / "run", device="cpu").table()
    assert set(rows[rows["metric"] == "reader_nll"]["label"]) == {"organs", "liver"}
