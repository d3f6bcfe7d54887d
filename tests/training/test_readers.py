"""Training on several readers, and the evaluation of such a run."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from helpers.runs import phantom, same, settings, weights
from segcal.cli import app
from segcal.core.errors import PathError
from segcal.data import open_dataset
from segcal.evaluation import evaluate_run
from segcal.metrics import REGIONS, evaluate_case
from segcal.training import Interrupted, train
from segcal.training.state import TrainingState


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("set") / "data"
    return phantom(out, dims=2, cases=12, size=32, raters=3)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for raters in ("majority", "random", "mean"):
        train(settings(data, data={"raters": raters}), out / raters)
    return out


def test_each_choice_trains_other_weights(runs: Path) -> None:
    majority, random, mean = (
        weights(runs / name / "last.pt") for name in ("majority", "random", "mean")
    )
    assert not same(majority, random)
    assert not same(majority, mean)
    assert not same(random, mean)


@pytest.mark.parametrize("raters", ["random", "mean"])
def test_a_resumed_run_and_a_streamed_one_have_the_same_weights(
    data: Path, runs: Path, raters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = TrainingState.step, []

    def stop_in_second_epoch(*arguments: Any) -> Any:
        steps.append(0)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    config = settings(data, data={"raters": raters, "loader": "stream"})
    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "step", stop_in_second_epoch)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "run" / "last.pt"), weights(runs / raters / "last.pt"))


def test_patches_and_augmentation(data: Path, tmp_path: Path) -> None:
    config = settings(
        data,
        data={"raters": "mean", "mode": "3d", "patch_size": [1, 16, 16], "per_case": 1},
        model={"options": {"filters": [4, 8], "pools": [1]}},
        augment=[{"name": "RandFlipd", "options": {"prob": 1.0, "spatial_axis": 2}}],
        loss={"dice_weight": 1.0},
        epochs=1,
    )
    train(config, tmp_path / "run")
    row = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert 0 < row["losses"]["loss"] < 10


def test_a_set_without_readers_is_refused(tmp_path: Path) -> None:
    data = phantom(tmp_path / "one", dims=2, cases=6, size=32)
    with pytest.raises(PathError, match=r"without readers.*data\.raters"):
        train(settings(data, data={"raters": "mean"}), tmp_path / "run")


def test_evaluation_has_the_rows_of_the_metrics(data: Path, runs: Path) -> None:
    table = evaluate_run(runs / "mean", jobs=1).table()
    rows = table[table["case"] != "pooled"]
    case = open_dataset(data)[rows["case"].iloc[0]]
    dsc = rows[(rows["metric"] == "reader_dsc") & (rows["case"] == case.name)]
    assert set(dsc["label"]) == {
        f"{organ}/{reader}"
        for organ in ("liver", "spleen", "kidneys", "lesion")
        for reader in case.readers
    }
    printed = CliRunner().invoke(app, ["evaluate", str(runs / "mean"), "--jobs", "1"]).output
    mean = rows.query("metric == 'reader_dsc' and region == 'all'")["value"].mean()
    assert f"{mean:.4g}" in next(li for li in printed.splitlines() if "reader_dsc" in li)
    pooled = table[(table["case"] == "pooled") & (table["metric"] == "reader_ece")]
    assert set(pooled["region"]) == set(REGIONS)
    # The true probabilities, evaluated like a prediction, are closer to the readers.
    truth = case.truth()
    assert truth is not None
    raters = dict(zip(case.readers, case.raters(), strict=True))
    best = evaluate_case(truth / truth.sum(0), case.label(), 1.0, case="c", raters=raters)
    value = next(r.value for r in best.rows if (r.metric, r.region) == ("reader_nll", "all"))
    own = rows[(rows["metric"] == "reader_nll") & (rows["case"] == case.name)]
    assert value < own[own["region"] == "all"]["value"].item()
