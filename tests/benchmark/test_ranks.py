"""The files of a study, the terminal and the report show the same ranks and means."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.runs import phantom
from segcal.benchmark import BenchmarkStudy, Plan
from segcal.benchmark.progress import _scores
from segcal.benchmark.runner import describe_choice
from segcal.benchmark.task_matrix import make_task, open_datasets
from segcal.benchmark.tasks import Result, Task
from segcal.cli import benchmark as cli_benchmark
from segcal.config import EvaluationConfig, TrainConfig
from segcal.core.files import write_json
from segcal.metrics import COLUMNS
from segcal.report import Context
from segcal.stats import find_eligible, method_means, ranked_methods
from segcal.study import Candidate, read_cases_table, read_study

GROUPS = {"ce": "main", "ls": "main", "nacl": "main", "nacl_max": "ablation", "ce+t": "posthoc"}
METRICS = {"dsc": "all", "hd95_mm": "all", "ece": "foreground", "cece": "foreground"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=5, size=32)


def rows(methods: dict[str, str], cases: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Two structures, two seeds; some distances are undefined, and datasets differ in size."""
    rng = np.random.default_rng(0)
    for number, (dataset, count) in enumerate(cases.items()):
        for method in methods:
            for seed in (0, 1):
                run = f"{dataset}/{method}/seed{seed}"
                for case in [f"{i:03d}" for i in range(count)]:
                    for metric, region in METRICS.items():
                        spatial = region == "all"
                        for label in ("liver", "lesion") if spatial else ("all",):
                            value = rng.random() * (30 * (number + 1) if "mm" in metric else 1)
                            if metric == "hd95_mm" and rng.random() < 0.2:
                                value = float("nan")
                            yield (run, method, seed, dataset, case, label, region, metric, value)
                yield (run, method, seed, dataset, "pooled", "all", "foreground", "ece", 100.0)


def make_study(
    folder: Path, data: Path, groups: dict[str, str] = GROUPS, **changes: Any
) -> BenchmarkStudy:
    """A study with random rows."""
    plan = Plan.model_validate({
        "datasets": {name: {"path": str(data)} for name in ("heart", "belly")},
        "methods": {name: {"loss": "ce", "group": group} for name, group in groups.items()},
        "seeds": [0, 1],
        "region": "foreground",
        **changes,
    })  # fmt: skip
    folder.mkdir()
    study = BenchmarkStudy(folder, plan, "benchmark", open_datasets(plan))
    study.add(
        make_task(plan, dataset, method, {}, seed)
        for dataset in plan.datasets for method in groups for seed in plan.seeds
    )  # fmt: skip
    study.results = {run: Result("done") for run in study.tasks}
    table = pd.DataFrame(rows(groups, {"heart": 7, "belly": 3}), columns=list(COLUMNS))
    table.to_csv(folder / "cases.csv", index=False)
    write_json(folder / "study.json", study.content().model_dump(mode="json"))
    return study


@pytest.mark.parametrize(
    "groups",
    [
        GROUPS,
        {"ce": "main", "nacl": "main"},
        {"nacl": "main", "a": "ablation", "b": "ablation"},
        {"a": "prior", "b": "prior", "c": "ablation"},
    ],
)
def test_report_and_study_have_the_same_ranks(
    groups: dict[str, str], data: Path, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "study", data, groups)
    study.rank()
    assert study.ranks is not None
    theirs = Context(read_study(study.folder)).rankings
    assert theirs is not None
    mine = study.ranks.set_index("method")
    assert list(mine.index) == list(theirs.sums["method"])
    for column, table in (("sum_rank", theirs.sums), ("mean_case_rank", theirs.cases)):
        pd.testing.assert_series_equal(
            mine[column].sort_index(), table.set_index("method")[column].sort_index()
        )
    variants = {name for name, group in groups.items() if group in ("ablation", "prior", "posthoc")}
    if len(groups) - len(variants) > 1:
        assert not variants & set(mine.index)
    written = pd.read_csv(study.folder / "ranks.csv")
    pd.testing.assert_frame_equal(written, study.ranks.reset_index(drop=True))


def test_the_methods_that_are_ranked() -> None:
    assert ranked_methods(GROUPS) == ["ce", "ls", "nacl"]
    assert ranked_methods({"ce": "main", "ce+t": "posthoc"}) == ["ce", "ce+t"]
    assert ranked_methods({"a": "main", "b": "prior"}) == ["a", "b"]
    table = pd.DataFrame(rows(GROUPS, {"heart": 2, "belly": 2}), columns=list(COLUMNS))
    table = table[(table["method"] != "ls") | (table["dataset"] != "belly")]
    table.loc[(table["dataset"] == "belly") & (table["metric"] == "cece"), "value"] = float("nan")
    chosen = find_eligible(table, ["ce", "ls", "nacl"], [*METRICS, "nsd_2mm"], "foreground")
    assert (chosen.methods, chosen.incomplete) == (["ce", "nacl"], ["ls"])
    assert chosen.metrics == ["dsc", "hd95_mm", "ece"]
    # Nothing was measured there.
    assert find_eligible(table, ["ce", "nacl"], ["ece"], "union").metrics == []
    assert not find_eligible(table, ["ce"], ["dsc"], "foreground")
    apart = table.copy()
    apart.loc[(apart["dataset"] == "heart") & (apart["method"] == "ce"), "case"] += " other"
    chosen = find_eligible(apart, ["ce", "nacl"], ["dsc"], "foreground")
    assert (chosen.datasets, chosen.unpaired) == (["belly"], ["heart"])
    assert not find_eligible(table.iloc[:0], ["ce", "ls"], ["dsc"], "foreground")


def test_means_are_those_of_the_report(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path / "study", data)
    found = method_means(read_study(study.folder).table, metrics=list(METRICS), region="foreground")
    means = {(row.dataset, row.method, row.metric): row.mean for row in found.itertuples()}
    numbers = Context(read_study(study.folder)).aggregates
    assert len(means) == 2 * len(GROUPS) * len(METRICS)
    for (dataset, method, metric), value in means.items():
        assert value == pytest.approx(numbers.overall(dataset, method, metric).mean, rel=1e-12)
    # By hand, where a case lacks one of its two structures: it counts as much as the others.
    table = read_cases_table(study.folder / "cases.csv")
    part = table.query("dataset == 'heart' and method == 'ls' and metric == 'hd95_mm'")
    assert 0 < part["value"].isna().sum() < len(part)
    seeds = [
        np.nanmean([case["value"].mean() for _, case in seed.groupby("case", observed=True)])
        for _, seed in part.groupby("seed", observed=True)
    ]
    assert means["heart", "ls", "hd95_mm"] == pytest.approx(np.mean(seeds))
    assert means["heart", "ls", "hd95_mm"] != pytest.approx(part["value"].mean())
    study.rank()
    cli_benchmark._show_ranks(study)
    said = capsys.readouterr().out
    for word in ("heart hd95 mm", "belly hd95 mm"):
        assert word in said
    (line,) = [line for line in said.splitlines() if re.search(r"\bls\b", line)]
    for dataset in ("heart", "belly"):
        for metric in METRICS:
            assert f"{means[dataset, 'ls', metric]:.4g}" in line
    heart = table.query("dataset == 'heart' and metric == 'hd95_mm' and case != 'pooled'")
    lost = heart["value"].isna()
    label = heart["label"][lost].unique()
    total = heart["label"].isin(label).sum()
    assert f"heart, hd95 mm of {', '.join(label)}: {lost.sum()} of {total} values" in said
    # Variants are shown, without a rank.
    (line,) = [line for line in said.splitlines() if "nacl_max" in line]
    assert line.count("–") == 2


def test_a_failed_ranking_removes_old_ranks(data: Path, tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", data)
    study.rank()
    assert (study.folder / "ranks.csv").exists()
    # A row twice: ranking refuses it, and the old ranks are not those of these rows.
    table = pd.read_csv(study.folder / "cases.csv")
    pd.concat([table, table.iloc[:1]]).to_csv(study.folder / "cases.csv", index=False)
    study.rank()
    assert study.ranks is None
    assert "several rows have method" in study.not_ranked
    assert not (study.folder / "ranks.csv").exists()


def test_a_study_that_cannot_be_ranked_is_reported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path / "study", data, metrics=["hd95"])
    table = pd.read_csv(study.folder / "cases.csv")
    table.loc[table["metric"] == "hd95_mm", "value"] = float("nan")
    table.to_csv(study.folder / "cases.csv", index=False)
    study.rank()
    cli_benchmark.finish(study, report=True)
    assert "not ranked: no metric has values on every dataset" in capsys.readouterr().out
    assert (study.folder / "report").is_dir()


def test_the_table_is_parsed_and_ranked_once(data: Path, tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", data)
    study.rank()
    (study.folder / "ranks.csv").unlink()
    (study.folder / "cases.csv").unlink()
    cli_benchmark.finish(study, report=True)
    assert not (study.folder / "ranks.csv").exists()


def test_the_progress_line_names_the_region() -> None:
    task = Task(
        run="r", dataset="d", method="m", seed=0, folder="run", split="test", region="union",
        config=TrainConfig(), evaluation=EvaluationConfig(),
    )  # fmt: skip
    result = Result("done", scores={"dsc": 0.81234, "ece": 0.04321})
    assert _scores(task, result) == "test DSC 0.8123 ECE (union) 0.0432"


def test_ties_of_a_grid_are_named() -> None:
    judged = [
        Candidate(options={"margin": m}, val_dsc=v) for m, v in ((3, 0.50001), (5, 0.2), (7, None))
    ]
    assert describe_choice(judged[0], judged) == "chose margin=3 by validation DSC 0.5000"
    judged.append(Candidate(options={"margin": 10}, val_dsc=0.5))
    text = describe_choice(judged[0], judged)
    assert "0.5000; margin=10 scored the same" in text
