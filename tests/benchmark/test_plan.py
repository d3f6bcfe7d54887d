"""Plans: checked before anything is trained."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.runs import phantom
from helpers.trees import acdc_tree, run_cli
from segcal.benchmark import BenchmarkStudy, Plan, load_plan, run_benchmark
from segcal.benchmark.plan import slug, to_yaml
from segcal.benchmark.task_matrix import check_parts, counts, open_datasets, plan_tasks
from segcal.benchmark.tasks import Task
from segcal.config import ConfigError
from segcal.core.errors import PathError
from segcal.data import AcdcSource, open_dataset, prepare

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE: dict[str, Any] = {
    "datasets": {"a": {"path": "data/a", "train": {"batch_size": 4}}, "b": {"path": "data/b"}},
    "methods": {
        "ce": {"loss": "ce"},
        "nacl": {"loss": "nacl", "dice_weight": 0.5, "train": {"optimizer": {"lr": 0.5}}},
        "mbls": {"loss": "mbls", "grid": {"margin": [3, 5], "penalty_weight": [0.1, 0.2]}},
    },
    "seeds": [3, 1],
    "train": {"epochs": 7, "batch_size": 2, "optimizer": {"milestones": [4]}},
}

CLAIM = {"claim": "NACL is better", "method": "nacl", "other": "ce", "metric": "ece"}
VARIANTS = {
    "ce": {"loss": "ce"}, "ls": {"loss": "ls"}, "ce_2": {"loss": "ce", "group": "prior"}
}  # fmt: skip


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**BASE, **changes}, sort_keys=False))
    return path


def test_settings_are_merged(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path / "plan.yaml"), data={"b": "elsewhere"})
    config = plan.config("a", "nacl", {"prior": "max"}, seed=3)
    assert (config.epochs, config.batch_size, config.seed) == (7, 4, 3)
    assert (config.optimizer.lr, config.optimizer.milestones) == (0.5, (4,))
    assert (config.loss.name, config.loss.options) == ("nacl", {"prior": "max"})
    assert (config.loss.dice_weight, config.data.path) == (0.5, "data/a")
    assert plan.config("b", "ce", {}, 1).batch_size == 2
    assert plan.config("b", "ce", {}, 1).data.path == "elsewhere"
    assert plan.region == "all"
    again = Plan.model_validate(yaml.safe_load(to_yaml(plan)))
    assert again == plan


def test_parts_that_share_a_case_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", dims=2, cases=14, size=32)
    splits = json.loads((data / "splits.json").read_text())
    splits["train"].append(splits["test"][0])
    (data / "splits.json").write_text(json.dumps(splits))
    plan = {"datasets": {"toy": {"path": str(data)}}, "methods": {"ce": {"loss": "ce"}}}
    with pytest.raises(PathError, match=r"splits\.json: .* shares its patient"):
        run_benchmark(Plan.model_validate(plan), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_set_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    """Its runs fail and say why."""
    data = phantom(tmp_path / "data", dims=2, cases=14, size=32)
    plan = Plan.model_validate(
        {"datasets": {"toy": {"path": str(data)}}, "methods": {"ce": {"loss": "ce"}}}
    )
    datasets, tasks = open_datasets(plan), plan_tasks(plan)
    (data / "cases" / open_dataset(data).splits.train[0] / "case.json").write_text("{")
    with pytest.raises(PathError, match=r"case\.json"):
        open_dataset(data).check_parts()
    check_parts(tasks, datasets)


def test_a_missing_launcher_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    data = phantom(tmp_path / "data", dims=2, cases=14, size=32)
    plan = {"datasets": {"toy": {"path": str(data)}}, "methods": {"ce": {"loss": "ce"}}}
    with pytest.raises(ImportError, match="ray"):
        run_benchmark(Plan.model_validate(plan), tmp_path / "study", launcher="ray")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("methods", "train", "message"),
    [
        ({"mine": {"loss": "nacl", "options": {"lamda": 1}}}, {}, "method `mine`: .*'lamda'"),
        ({"mine": {"loss": "cee"}}, {}, "method `mine`: .*'cee'"),
        ({"mine": {"loss": "ce"}}, {"epoch": 1}, "train settings of `mine` on `a`: .*`epoch`"),
    ],
)
def test_invalid_settings_name_their_method(
    tmp_path: Path, methods: dict[str, Any], train: dict[str, Any], message: str
) -> None:
    plan = load_plan(write(tmp_path / "plan.yaml", methods=methods, train=train))
    with pytest.raises(ValueError, match=message):
        plan_tasks(plan)


def test_tasks(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path / "plan.yaml"))
    tasks = plan_tasks(plan)
    runs = [task.run for task in tasks]
    # All of the first seed, candidates among them, then the others of methods without a grid.
    assert runs[:4] == ["a/ce/seed3", "b/ce/seed3", "a/nacl/seed3", "b/nacl/seed3"]
    assert runs[4] == "a/mbls@margin=3,penalty_weight=0.1/seed3"
    assert runs[-4:] == ["a/ce/seed1", "b/ce/seed1", "a/nacl/seed1", "b/nacl/seed1"]
    assert len(runs) == len(set(runs)) == 16
    assert counts(plan) == {"candidates": 8, "runs": 12}
    assert {task.split for task in tasks if "@" in task.run} == {"val"}
    assert {task.split for task in tasks if "@" not in task.run} == {"test"}
    assert Task.model_validate(json.loads(json.dumps(tasks[0].model_dump(mode="json")))) == tasks[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {}}, "has no key `method`.*Did you mean 'methods'"),
        ({"methods": {"x": {"loss": "ce", "optoins": {}}}}, "`methods.x` .*'options'"),
        ({"methods": {"a/b": {"loss": "ce"}}}, "names of folders"),
        ({"methods": {}}, "methods"),
        ({"seeds": [1, 1]}, "`seeds` has a value twice"),
        ({"region": "union", "evaluation": {"regions": ["all"]}}, "leaves out"),
        ({"evaluation": {"unit": "mm"}}, "Did you mean 'units'"),
        ({"metrics": ["dsc", "eece"]}, "`eece` in `metrics`.*Did you mean 'ece'"),
        ({"metrics": ["mean_confidence"]}, "`mean_confidence` .* cannot be ranked"),
        ({"metrics": ["truth_ece"], "region": "union"}, "set `region` to all"),
        ({"metrics": ["hd95_voxel"]}, "`evaluation` measures `hd95_mm`"),
        ({"metrics": ["hd95_mm"], "evaluation": {"units": "voxel"}}, "measures `hd95_voxel`"),
        ({"metrics": ["nsd_1mm"]}, "measures `nsd_2mm`"),
        ({"metrics": ["nsd"], "evaluation": {"units": "voxel"}}, "needs `evaluation.units` mm"),
        ({"metrics": ["hd95", "hd95_mm"]}, "a value twice in `metrics`"),
        ({"tables": ["mian"]}, "`tables.0`.*'main', 'classes', 'ablation' or 'priors'"),
        ({"tables": ["main", "main"]}, "`tables` has a value twice"),
        (
            {"hypotheses": [{**CLAIM, "other": "nalc"}]},
            "hypothesis 1 .* `nalc`, which is no method",
        ),
        ({"hypotheses": [{**CLAIM, "datasets": ["x"]}]}, "`x`, which is no dataset"),
        ({"hypotheses": [{**CLAIM, "region": "rim"}]}, "`rim`, .*foreground"),
        ({"hypotheses": [{**CLAIM, "metric": "mean_confidence"}]}, "descriptive metric"),
        ({"hypotheses": [{**CLAIM, "limit": 1}]}, "limit"),
        ({"reference": "nalc"}, r"`nalc` in `reference`.*ce, nacl, mbls. Did you mean 'nacl'"),
        ({"reference": "nacl+temperature"}, r"`reference`, which is none of ce, nacl, mbls"),
        (
            {"methods": VARIANTS, "reference": "ce_2"},
            "`ce_2` in `reference`, which is none of ce, ls: group prior is not ranked",
        ),
    ],
)
def test_invalid_plans_are_explained(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_plan(write(tmp_path / "plan.yaml", **changes))
    assert str(caught.value).startswith(str(tmp_path / "plan.yaml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"epoch": 3}}, "Did you mean 'epochs'"),
        ({"train": {"seed": 3}}, "must not set `seed`"),
        ({"methods": {"x": {"loss": "nalc"}}}, "'nacl'"),
        ({"methods": {"x": {"loss": "nacl", "options": {"gamma": 1}}}}, "gamma"),
        ({"methods": {"x": {"loss": "nacl", "grid": {"prior": ["maen"]}}}}, "'mean'"),
    ],
)
def test_invalid_runs_are_found_before_training(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    plan = load_plan(write(tmp_path / "plan.yaml", **changes))
    with pytest.raises(ValueError, match=words):
        plan_tasks(plan)


def test_metrics_have_the_names_of_the_rows(tmp_path: Path) -> None:
    metrics = ["dsc", "hd95", "assd_voxel", "ece"]
    plan = load_plan(
        write(tmp_path / "plan.yaml", metrics=metrics, evaluation={"units": "voxel"})
    )  # fmt: skip
    study = BenchmarkStudy(tmp_path, plan, "benchmark", {})
    assert study.metrics == ["dsc", "hd95_voxel", "assd_voxel", "ece"]
    plan = load_plan(
        write(
            tmp_path / "plan.yaml", metrics=["nsd", "truth_ece"], region="all",
            evaluation={"nsd_tolerance_mm": 1.5},
        )
    )  # fmt: skip
    assert BenchmarkStudy(tmp_path, plan, "benchmark", {}).metrics == ["nsd_1.5mm", "truth_ece"]


def test_the_reference_is_a_ranked_method(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    assert load_plan(write(path)).reference is None
    named = load_plan(write(path, reference="nacl"))
    assert named.reference == "nacl"
    assert Plan.model_validate(yaml.safe_load(to_yaml(named))) == named
    assert load_plan(path, overrides=["reference=ce"]).reference == "ce"
    after = write(path, reference="nacl+temperature", posthoc=["temperature"])
    with pytest.raises(ValueError, match="none of ce, nacl, mbls: group posthoc is not ranked"):
        load_plan(after)
    # A study of variants ranks them with each other.
    alone = {name: VARIANTS[name] for name in ("ce", "ce_2")}
    assert load_plan(write(path, methods=alone, reference="ce_2")).reference == "ce_2"


def test_a_study_lists_the_patient_of_each_case(tmp_path: Path) -> None:
    source = acdc_tree(tmp_path / "source", patients=4, shape=(24, 24, 2))
    prepare(AcdcSource(source), tmp_path / "a")
    sets = {"a": {"path": str(tmp_path / "a")}}
    plan = load_plan(write(tmp_path / "plan.yaml", datasets=sets))
    (dataset,) = BenchmarkStudy(tmp_path, plan, "benchmark", open_datasets(plan)).content().datasets
    tested = open_dataset(tmp_path / "a").splits.test
    assert len(tested) >= 2
    assert dataset.patients == {name: name.split("_")[0] for name in tested}
    # A set that cannot be read any more stops its runs, not the study's file.
    (tmp_path / "a" / "cases" / tested[0] / "case.json").write_text("{")
    (dataset,) = BenchmarkStudy(tmp_path, plan, "benchmark", open_datasets(plan)).content().datasets
    assert dataset.patients == {}


def test_truth_metrics_need_sets_with_known_probabilities(tmp_path: Path) -> None:
    prepare(AcdcSource(acdc_tree(tmp_path / "raw")), tmp_path / "patients", workers=1)
    phantom(tmp_path / "phantoms", dims=2, cases=5, size=32)
    sets = {name: {"path": str(tmp_path / name)} for name in ("phantoms", "patients")}
    changes = {"metrics": ["dsc", "truth_ece"], "region": "all"}
    plan = load_plan(write(tmp_path / "plan.yaml", datasets=sets, **changes))
    with pytest.raises(ValueError, match=r"`patients` lacks .*probabilities.*`truth_ece`"):
        open_datasets(plan)
    del sets["patients"]
    assert open_datasets(load_plan(write(tmp_path / "plan.yaml", datasets=sets, **changes)))


def test_slugs() -> None:
    assert slug({"a": 0.1, "b": "x/y z", "c": [1, 3]}) == "a=0.1,b=x_y_z,c=1x3"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_plans_validate(path: Path) -> None:
    plan = load_plan(path)
    assert plan_tasks(plan)
    assert plan.title != "Study"
    if path.stem.startswith("evidence"):
        assert plan.region == "predicted_boundary"
        assert plan.hypotheses
    else:
        assert plan.region == "foreground"  # as in the published tables


def test_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = write(tmp_path / "plan.yaml"), tmp_path / "out"
    where = ("--out", out, "--dry-run")
    # The data are looked for where the plan says.
    assert run_cli(monkeypatch, "benchmark", plan, *where) == 2
    assert "segcal: data/a: is not a prepared set" in capsys.readouterr().err
    cut = ("--set", "datasets.a.path=''", "--set", "seeds=[0]")
    others = ("--set", "datasets.a.external={far: elsewhere}")
    assert run_cli(monkeypatch, "benchmark", plan, *where, *cut) == 0
    said = capsys.readouterr().out
    assert "a/nacl/seed0" in said
    assert "seed1" not in said
    assert "dataset a: no folder yet; pass --data a=DIR" in said
    assert "6 runs, after 8 candidates; nothing was trained" in said
    assert run_cli(monkeypatch, "benchmark", plan, *where, *cut, *others) == 0
    assert "dataset a, also evaluated on far: " in capsys.readouterr().out
    assert run_cli(monkeypatch, "benchmark", plan, "--out", out, *cut) == 2
    assert "pass --data a=DIR" in capsys.readouterr().err
    assert run_cli(monkeypatch, "benchmark", plan, *where, "--data", "c=x") == 2
    assert "only a, b" in capsys.readouterr().err
    assert run_cli(monkeypatch, "benchmark", plan, *where, "--data", "c") == 2
    assert "NAME=DIR" in capsys.readouterr().err
    assert not out.exists()


def test_dice_form_and_schedule_reach_the_loss() -> None:
    content = {
        "datasets": {"toy": {"path": "x"}},
        "methods": {
            "ours": {
                "loss": "nacl", "dice_weight": 0.5, "dice_form": "proper",
                "schedule": {"name": "error_driven"},
            }
        },
    }  # fmt: skip
    loss = Plan.model_validate(content).config("toy", "ours", {}, 0).loss
    assert (loss.dice_weight, loss.dice_form) == (0.5, "proper")
    assert loss.schedule is not None
    assert loss.schedule.name == "error_driven"
