"""docs/scripts/publish_study.py: a study in docs/results, and runs that are added later."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from helpers.plain_studies import write_plain
from segcal.report import write_report
from segcal.study import read_cases_table, read_study

SCRIPT = Path(__file__).parents[2] / "docs" / "scripts" / "publish_study.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish_study", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def study(folder: Path, dsc: dict[tuple[str, int], float], commit: str, **extra: object) -> Path:
    """Two cases per run, and the plan and environment that a benchmark writes."""
    values = {
        (method, seed, case): {"dsc": value, "ece": 1 - value}
        for (method, seed), value in dsc.items()
        for case in ("c1", "c2")
    }
    trained = [{"runs": len(dsc), "commit": commit}]
    write_plain(folder, values, environment={"trained": trained}, table_bytes=None, **extra)
    plan = {
        "datasets": {"d": {"path": "/somewhere"}},
        "methods": {method: {"loss": "ce"} for method, _ in dsc},
        "seeds": [0],
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    write_report(folder)
    return folder


def test_later_runs_are_added_and_earlier_ones_stay(tmp_path: Path, script: ModuleType) -> None:
    out = tmp_path / "results" / "s"
    claims = [
        {"claim": f"{one} beats {other}", "method": one, "other": other, "metric": "dsc"}
        for one, other in (("a", "b"), ("c", "a"), ("x", "a"))
    ]
    first = study(tmp_path / "first", {("a", 0): 0.8, ("b", 0): 0.7}, "one", hypotheses=claims[:1])
    script.publish(first, out, [])
    assert "/somewhere" not in (out / "plan.yaml").read_text()
    (out / "tables" / "old.md").write_text("| kept |\n")
    later = study(
        tmp_path / "later", {("a", 0): 0.1, ("a", 1): 0.9, ("c", 0): 0.6}, "two", hypotheses=claims
    )
    script.add(later, out)
    table = read_cases_table(out / "cases.csv.xz")
    dsc = table[(table["metric"] == "dsc") & (table["case"] == "c1")].set_index("run")["value"]
    expected = {"d/a/seed0": 0.8, "d/a/seed1": 0.9, "d/b/seed0": 0.7, "d/c/seed0": 0.6}
    assert {run: round(value, 6) for run, value in dsc.items()} == expected
    found = read_study(out)
    assert [run.run for run in found.info.runs] == sorted(expected)
    plan = yaml.safe_load((out / "plan.yaml").read_text())
    assert plan["seeds"] == [0, 1]
    assert set(plan["methods"]) == {"a", "b", "c"}
    decided = [one.claim for one in found.info.hypotheses]
    assert decided == ["a beats b", "c beats a"]  # x has no runs
    assert [one["claim"] for one in plan["hypotheses"]] == decided
    commits = [one["commit"] for one in json.loads((out / "study.json").read_text())
               ["environment"]["trained"]]  # fmt: skip
    assert commits == ["one", "two"]
    assert "0.850" in (out / "tables" / "main.md").read_text()  # the mean of both seeds of a
    assert (out / "tables" / "old.md").read_text().startswith("*Of the runs that were published")
    with pytest.raises(SystemExit, match="has all its runs"):
        script.add(later, out)
    other = [{**claims[0], "rule": "equal", "margin": 0.1}]
    changed = study(tmp_path / "changed", {("a", 2): 0.5}, "two", hypotheses=other)
    with pytest.raises(SystemExit, match="decides 'a beats b' by another rule"):
        script.add(changed, out)
    mixed = study(tmp_path / "mixed", {("a", 2): 0.5}, "two")
    content = json.loads((mixed / "study.json").read_text())
    content["environment"]["trained"] = [{"runs": 1, "commit": c} for c in ("one", "two")]
    content["environment"]["trained"][1]["runs"] = 2
    (mixed / "study.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="unknown which of its commits"):
        script.add(mixed, out)


def test_a_damaged_study_leaves_what_is_published(tmp_path: Path, script: ModuleType) -> None:
    out = tmp_path / "results" / "s"
    first = study(tmp_path / "first", {("a", 0): 0.8}, "one")
    script.publish(first, out, [])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (first / "plan.yaml").write_text("a: [")
    with pytest.raises(Exception, match="while parsing"):
        script.publish(first, out, [])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_runs_on_other_data_or_without_a_metric_are_refused(
    tmp_path: Path, script: ModuleType
) -> None:
    out = tmp_path / "results" / "s"
    script.publish(study(tmp_path / "first", {("a", 0): 0.8}, "one"), out, [])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = study(tmp_path / "other", {("a", 1): 0.8}, "two")
    content = json.loads((other / "study.json").read_text())
    content["datasets"][0]["fingerprint"] = "x"
    (other / "study.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="other data"):
        script.add(other, out)
    poor = study(tmp_path / "poor", {("a", 1): 0.8}, "two")
    rows = (poor / "cases.csv").read_text().splitlines()
    (poor / "cases.csv").write_text("\n".join(r for r in rows if ",ece," not in r) + "\n")
    with pytest.raises(SystemExit, match="no rows of ece"):
        script.add(poor, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_published_tables_are_those_of_the_rows(tmp_path: Path, script: ModuleType) -> None:
    """The smallest published study; `--tables` writes all of them again."""
    out = tmp_path / "evidence_hippocampus"
    shutil.copytree(script.RESULTS / out.name, out)
    before = {path.name: path.read_text() for path in out.glob("tables/*")}
    kept = script.rewrite_tables(out)
    assert [path.name for path in kept] == ["stated_confidence_hippocampus.md"]
    after = {path.name: path.read_text() for path in out.glob("tables/*")}
    assert after == before, "run docs/scripts/publish_study.py --tables"
