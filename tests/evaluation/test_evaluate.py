"""`segcal evaluate`: the four files of an evaluation hold the values of the metrics."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.runs import phantom, settings
from helpers.trees import run_cli
from segcal.config import EvaluationConfig
from segcal.core.arrays import window_of
from segcal.core.errors import PathError
from segcal.data import open_dataset
from segcal.evaluation import (
    PredictedCase,
    evaluate_run,
    open_run,
    predict_case,
    read_evaluation,
    write_evaluation,
)
from segcal.evaluation.run_cases import predicted_cases
from segcal.metrics import CalibrationBins, evaluate_case
from segcal.stats import collect
from segcal.training import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", cases=10, size=32, slices=4)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "nacl"
    train(settings(data, epochs=3, optimizer={"lr": 0.02}), out)
    return out


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run without evaluations."""
    out = tmp_path / "copy"
    out.mkdir()
    for name in ("config.yaml", "run.json", "best.pt", "last.pt"):
        (out / name).write_bytes((run / name).read_bytes())
    return out


def test_rows_are_those_of_the_metrics(run: Path, data: Path) -> None:
    found = evaluate_run(run, method="ours", dataset="toy", name="toy/ours/seed0", overwrite=True)
    table = found.table()
    assert set(table["run"]) == {"toy/ours/seed0"}
    assert set(table["method"]) == {"ours"}
    assert set(table["dataset"]) == {"toy"}
    dataset = open_dataset(data)
    cases = dataset.part("test")
    assert list(dict.fromkeys(table["case"])) == [c.name for c in cases] + ["pooled"]
    network = open_run(run).network("best", torch.device("cpu"))
    case = cases[1]
    prediction = predict_case(network, torch.from_numpy(case.image()))
    rows = evaluate_case(
        prediction.probs, case.label(), case.spacing_mm, case=case.name,
        groups={name: (k,) for k, name in dataset.classes.items() if k},
    ).rows  # fmt: skip
    ours = table[table["case"] == case.name].set_index(["label", "region", "metric"])["value"]
    for row in rows:
        np.testing.assert_equal(ours[row.label, row.region, row.metric], row.value)
    # Beyond evaluate_case: by hand.
    assert prediction.logits is not None
    size, label = prediction.logits.abs().mean(0).numpy(), case.label()
    for k in range(5):
        expected = size[label == k].mean() if (label == k).any() else np.nan
        np.testing.assert_allclose(ours[str(k), "all", "mean_abs_logit"], expected, rtol=1e-5)
    confidence = prediction.probs.max(0).values.numpy()
    np.testing.assert_allclose(
        ours["all", "foreground", "mean_confidence"], confidence[label > 0].mean(), rtol=1e-5
    )
    truth = case.truth()
    assert truth is not None
    gap = np.abs(prediction.probs.numpy() - truth / truth.sum(0)).mean()
    np.testing.assert_allclose(ours["all", "all", "truth_mae"], gap, rtol=1e-4)
    assert ours["all", "all", "truth_kl"] > 0
    assert ours["all", "all", "truth_ece"] != ours["all", "all", "ece"]
    assert collect(table, missing="worst").methods == ["ours"]


def test_bins_and_slices(run: Path, data: Path) -> None:
    found = evaluate_run(run, overwrite=True)
    table = found.table()
    cases = open_dataset(data).part("test")
    with np.load(found.path("bins.npz")) as bins:
        assert bins["labels"].tolist() == ["background", "liver", "spleen", "kidneys", "lesion"]
        regions = bins["regions"].tolist()
        keys = CalibrationBins(5).state()
        for i, case in enumerate(bins["cases"]):
            state = {key: bins[key][i, regions.index("union")] for key in keys}
            chosen = (table["case"] == case) & (table["region"] == "union")
            value = table[chosen & (table["metric"] == "ece")]["value"]
            assert CalibrationBins.from_state(state).ece() == value.item()
        total = {key: bins[key][:, regions.index("all")].sum(0) for key in keys}
        pooled = table.query("case == 'pooled' and region == 'all' and metric == 'cece'")["value"]
        np.testing.assert_allclose(CalibrationBins.from_state(total).cece(), pooled.item())
        truth = CalibrationBins.from_state({key: bins[f"truth_{key}"][0, 0] for key in keys})
        value = table.query("case == @cases[0].name and metric == 'truth_ece'")["value"]
        assert truth.ece() == value.item()
    with np.load(found.path("slices.npz")) as slices:
        for i, case in enumerate(cases):
            label = case.label()
            rows, columns = window_of((label > 0).any(0))
            np.testing.assert_array_equal(slices[f"truth_{i}"], label[:, rows, columns])
            assert slices[f"image_{i}"].dtype == np.uint8
            assert slices[f"confidence_{i}"].min() >= 255 // 5
            np.testing.assert_array_equal(slices[f"spacing_{i}"], case.spacing_mm[1:])
    about = json.loads(found.path("evaluation.json").read_text())
    assert about["structures"] == ["liver", "spleen", "kidneys", "lesion"]
    undefined = table[(table["case"] != "pooled") & table["value"].isna()]["metric"]
    assert about["undefined"] == undefined.astype(str).value_counts().to_dict()


def test_an_existing_evaluation_is_reused(copied: Path) -> None:
    calls: list[int | None] = []
    first = evaluate_run(copied, progress=lambda what, done, total: calls.append(total))
    assert calls == [2, 2]
    written = first.path("cases.csv").stat().st_mtime_ns
    assert evaluate_run(copied, progress=lambda what, done, total: calls.append(total)) == first
    assert (len(calls), first.path("cases.csv").stat().st_mtime_ns) == (2, written)
    with pytest.raises(ValueError, match=r"evaluation\.json: .*units 'mm'; pass --overwrite"):
        evaluate_run(copied, config=EvaluationConfig(units="voxel"))
    (copied / "best.pt").write_bytes((copied / "last.pt").read_bytes())
    with pytest.raises(ValueError, match="another checkpoint"):
        evaluate_run(copied)
    evaluate_run(copied, overwrite=True)


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        ({"num_bins": 5}, "ece"),
        ({"dilate_mm": 20.0}, "ece"),
        ({"width_mm": 9.0}, "ece"),
        ({"flips": ("w",)}, "ece"),
        ({"flips": ("h", "w"), "average": "logits"}, "ece"),
        ({"checkpoint": "last"}, "ece"),
        ({"empty": "diagonal"}, "hd95_mm"),
    ],
)
def test_every_option_changes_the_result(copied: Path, change: dict, metric: str) -> None:
    # An early network as the best one, so that checkpoints differ and structures are missed.
    def values(config: EvaluationConfig) -> np.ndarray:
        table = evaluate_run(copied, config=config, overwrite=True).table()
        return table[table["metric"] == metric]["value"].to_numpy()

    if "checkpoint" in change:
        content = torch.load(copied / "best.pt", weights_only=True)
        content["model"] = {k: 0.9 * v for k, v in content["model"].items()}
        torch.save(content, copied / "best.pt")
    before, after = values(EvaluationConfig()), values(EvaluationConfig(**change))
    assert not np.array_equal(before, after, equal_nan=True)


def test_options_that_change_the_set_of_rows(copied: Path) -> None:
    config = EvaluationConfig(regions=("all",), units="voxel", nsd_tolerance_mm=1.0)
    table = evaluate_run(copied, config=config).table()
    assert set(table["region"]) == {"all"}
    assert {"hd95_voxel", "dsc"} <= set(table["metric"])
    table = evaluate_run(
        copied, config=EvaluationConfig(nsd_tolerance_mm=1.0), overwrite=True
    ).table()
    assert "nsd_1mm" in set(table["metric"])


def test_splits_have_their_own_files(copied: Path, data: Path) -> None:
    val = evaluate_run(copied, split="val")
    assert val.path("cases.csv") == copied / "cases_val.csv"
    assert not (copied / "cases.csv").exists()
    assert set(val.table()["case"]) - {"pooled"} == {c.name for c in open_dataset(data).part("val")}
    assert read_evaluation(copied) is None
    assert read_evaluation(copied, "val") == val


def test_test_cases_that_were_trained_on_are_refused(copied: Path, data: Path) -> None:
    about = json.loads((copied / "run.json").read_text())
    seen = open_dataset(data).part("test")[0].name
    about["cases"]["train"].append(seen)
    (copied / "run.json").write_text(json.dumps(about))
    with pytest.raises(PathError, match=f"used test case {seen} in its train split"):
        evaluate_run(copied)
    assert not (copied / "cases.csv").exists()


def test_moved_data(copied: Path, data: Path) -> None:
    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace(str(data), "/nowhere"))
    with pytest.raises(PathError, match=r"/nowhere, .*--data"):
        evaluate_run(copied)
    assert evaluate_run(copied, data=data).info.case_names == tuple(
        c.name for c in open_dataset(data).part("test")
    )


def test_names_are_kept_from_an_existing_evaluation(copied: Path) -> None:
    """Also if the run was renamed."""
    names = {"name": "acdc/nacl5/seed0", "method": "nacl5", "dataset": "acdc"}
    first = evaluate_run(copied, **names)
    moved = copied.rename(copied.with_name("moved"))
    assert evaluate_run(moved).info == first.info
    for found in (
        evaluate_run(moved, overwrite=True),
        evaluate_run(moved, split="val"),
    ):
        assert set(found.table()["run"]) == {"acdc/nacl5/seed0"}
        assert set(found.table()["method"]) == {"nacl5"}
        assert set(found.table()["dataset"]) == {"acdc"}
    with pytest.raises(ValueError, match=r"run 'acdc/nacl5/seed0'; pass --overwrite"):
        evaluate_run(moved, name="other")
    # A damaged one is replaced under the names the run itself has.
    for path in moved.glob("evaluation*.json"):
        path.write_text("{")
    assert evaluate_run(moved, overwrite=True).info.run == "moved"


def test_validation_cases_that_were_trained_on_are_refused(copied: Path, data: Path) -> None:
    about = json.loads((copied / "run.json").read_text())
    seen = open_dataset(data).part("val")[0].name
    assert evaluate_run(copied, split="train").split == "train"
    about["cases"]["train"].append(seen)
    (copied / "run.json").write_text(json.dumps(about))
    with pytest.raises(PathError, match=f"used val case {seen} in its train split"):
        evaluate_run(copied, split="val")


def test_threads_change_nothing(copied: Path) -> None:
    tables = [
        evaluate_run(copied, jobs=workers, overwrite=True).path("cases.csv").read_text()
        for workers in (1, 3)
    ]
    assert tables[0] == tables[1]


def samples(names: list[str]) -> Iterator[PredictedCase]:
    rng = np.random.default_rng(0)
    for name in names:
        probs = rng.dirichlet(np.ones(2), size=(6, 6)).transpose(2, 0, 1)
        yield PredictedCase(name, probs, rng.integers(0, 2, (6, 6)), (1.0, 2.0))


def test_an_unconfident_network_does_not_warn_of_a_second_softmax(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation applied the softmax itself, once."""
    monkeypatch.setattr("segcal.metrics._validate._SECOND_SOFTMAX_VOXELS", 1)

    def uniform(*arguments: Any) -> Iterator[PredictedCase]:
        for case in predicted_cases(*arguments):
            yield replace(case, probs=case.probs * 0 + 1 / len(case.probs))

    monkeypatch.setattr("segcal.evaluation.run_evaluation.predicted_cases", uniform)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate_run(copied)
    assert found.means("all")["mean_confidence"] == pytest.approx(1 / 5)


def test_planes_of_any_origin(tmp_path: Path) -> None:
    """numpy arrays in 2-D without image or logits; a group, and a case name with a comma."""
    names = {"run": "r", "method": "m", "seed": 0, "dataset": "d", "labels": ["no", "yes"]}
    cases = ['a,"b', "<script>"]
    found = write_evaluation(samples(cases), tmp_path, **names, groups={"it": (1,)})
    table = found.table()
    assert list(dict.fromkeys(table["case"])) == [*cases, "pooled"]
    assert "mean_abs_logit" not in set(table["metric"])
    assert set(table[table["metric"] == "dsc"]["label"]) == {"it"}
    with np.load(tmp_path / "slices.npz") as slices:
        assert slices["labels_0"].shape == (1, 6, 6)
    with pytest.raises(ValueError, match="already; pass --overwrite"):
        write_evaluation(samples(["a"]), tmp_path, **names)
    for bad, words in ((["a", "a"], "unique"), ([], "to have cases")):
        with pytest.raises(ValueError, match=words):
            write_evaluation(samples(bad), tmp_path / "new", **names)
    with pytest.raises(ValueError, match="to have 3 classes"):
        write_evaluation(samples(["a"]), tmp_path / "new", **names | {"labels": ["a", "b", "c"]})
    assert not (tmp_path / "new").exists()


def test_the_command(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, "evaluate", copied, "--region", "all", "--flips", "hw") == 0
    said = capsys.readouterr().out
    assert "phantom test, 2 cases, nacl" in said
    assert "lesion" in said
    assert "foreground" not in said
    assert run_cli(monkeypatch, "evaluate", copied, "--region", "all", "--flips", "hw") == 0
    assert "evaluation.json: is up to date" in capsys.readouterr().out
    for arguments, words in [
        ((copied,), "pass --overwrite to replace"),
        ((copied, "--units", "inch"), "`units`"),
        ((copied, "--split", "tset"), "Did you mean 'test'?"),
        ((copied, "--flips", "x"), "`flips.0`"),
        ((copied.parent,), "is not a run; give the folder"),
        ((copied / "nothing",), "does not exist"),
        ((copied, "--device", "cuda:99", "--overwrite"), "--device cuda:99: is not available"),
    ]:
        assert run_cli(monkeypatch, "evaluate", *arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith("segcal: "), said
        assert said.count("\n") == 1
        assert words in said


def test_a_network_and_a_loss_by_import_path(data: Path, tmp_path: Path) -> None:
    """A run of a user's classes is evaluated like any other."""
    config = settings(
        data, epochs=1,
        model={"name": "helpers.extensions:TwoConvs", "options": {"width": 3}},
        loss={"name": "helpers.extensions:BrierLoss", "options": {"weight": 2.0}},
    )  # fmt: skip
    train(config, tmp_path / "run")
    found = evaluate_run(tmp_path / "run")
    assert found.info.method == "helpers.extensions:BrierLoss"
    assert 0 <= found.means()["ece"] <= 1
