"""The plans of the paper's tables, cut to one epoch, on a few real patients."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import environment
from segcal.benchmark import load_plan, run_benchmark
from segcal.data import AcdcSource, prepare

EXAMPLES = Path(__file__).parents[2] / "examples"
CUT = [
    "datasets={acdc: {title: ACDC}}",
    "train={epochs: 1, precision: '32', model: {options: {filters: [4, 8], pools: [2]}}}",
]


@pytest.fixture(scope="module")
def data(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("acdc")
    (root / "training").mkdir()
    for patient in sorted((data_root / "acdc" / "training").glob("patient*"))[:6]:
        (root / "training" / patient.name).symlink_to(patient)
    prepare(AcdcSource(root / "training"), root / "data", dtype="uint8", workers=1)
    return root / "data"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: the tables share runs."""
    return tmp_path_factory.mktemp("studies") / "study"


@pytest.fixture(autouse=True)
def _as_in_processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, environment()[name])


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("table", ["main", "classes", "ablation", "priors"])
def test_a_table_of_the_paper(table: str, data: Path, out: Path) -> None:
    plan = load_plan(EXAMPLES / f"paper_{table}.yaml", overrides=CUT, data={"acdc": str(data)})
    study = run_benchmark(plan, out, resume=True, silent=True)
    assert not study.failed
    about = json.loads((out / "study.json").read_text())
    assert {run["state"] for run in about["runs"]} == {"done"}
    assert [method["name"] for method in about["methods"]] == list(plan.methods)
    assert about["datasets"][0]["source"] == "acdc"
    assert about["metrics"][1] == "hd95_voxel"
    assert table in about["tables"]
    # After one epoch nothing is found: distances are undefined and not ranked.
    ranks = study.ranks
    assert ranks is not None
    assert sorted(ranks["method"]) == sorted(study.ranked)
    assert study.finished is not None
    rows = study.finished.table
    found = rows[rows["metric"] == "hd95_voxel"]["value"].notna().any()
    assert ("hd95_voxel" in ranks["metrics"].iloc[0]) == found
    assert set(rows["method"]) == set(plan.methods)
    assert {"hd95_voxel", "dsc", "ece"} <= set(rows["metric"])
