"""Complete studies in real processes: failures, kills, grids, resuming."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from helpers.runs import finish, start
from segcal.benchmark import BenchmarkStudy, Plan, run_benchmark
from segcal.benchmark.local_launcher import worker_environment
from segcal.benchmark.plan import to_yaml
from segcal.study import read_evaluation, read_study, read_training

pytestmark = pytest.mark.usefixtures("as_in_processes")


def make_plan(data: Path, methods: dict[str, Any], **changes: Any) -> Plan:
    return Plan.model_validate({
        "title": "Toy",
        "datasets": {"toy": {"path": str(data), "title": "Toy set"}},
        "methods": methods,
        "train": {
            "epochs": 3, "batch_size": 4, "precision": "32", "optimizer": {"lr": 0.02},
            "model": {"options": {"filters": [4, 8], "pools": [2]}},
        },
        **changes,
    })  # fmt: skip


METHODS: dict[str, Any] = {
    "nacl": {"loss": "nacl", "title": "NACL", "paper": "NACL .1"},
    "broken": {"loss": "ce", "train": {"optimizer": {"lr": 1e30}}},
    "mbls": {"loss": "mbls", "group": "ablation", "grid": {"margin": [3, 10]}},
}


@pytest.fixture(scope="module")
def plan(data: Path) -> Plan:
    return make_plan(data, METHODS, seeds=[0, 1], reference="nacl")


@pytest.fixture(scope="module")
def study(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkStudy:
    return run_benchmark(plan, tmp_path_factory.mktemp("studies") / "study", silent=True)


def test_the_summary_of_a_validation_every_second_epoch(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    values = [(0.5, None), (0.8, 0.12345), (0.1, 0.2)]  # without any foreground there is no ECE
    lines: list[dict[str, Any]] = []
    for dsc, ece in values:
        lines += [{"epoch": len(lines)}, {"epoch": len(lines) + 1, "val": {"dsc": dsc, "ece": ece}}]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"epoch": 6}]))
    found = read_training(tmp_path)
    assert found is not None
    assert found.model_dump(mode="json") == {
        "epochs": 7, "best_epoch": 4, "best_dsc": 0.8, "last_dsc": 0.1, "tested_epoch": 4,
        "restarted_epoch": None,
        "course": {"epochs": [2, 4, 6], "dsc": [0.5, 0.8, 0.1], "ece": [None, 0.1235, 0.2]},
    }  # fmt: skip
    last = read_training(tmp_path, "last")
    assert last is not None
    assert last.tested_epoch == 7
    assert read_training(tmp_path / "none") is None
    for damaged in ("", "{", '{"epoch": 0}', '{"val": 3}', '{"val": {"ece": 0.1}}'):
        log.write_text(damaged)
        assert read_training(tmp_path) is None


def test_the_files_of_a_study(study: BenchmarkStudy, plan: Plan) -> None:
    about = json.loads((study.folder / "study.json").read_text())
    assert (about["format"], about["kind"], about["title"]) == ("segcal-study", "benchmark", "Toy")
    assert about["metrics"] == ["dsc", "hd95_mm", "ece", "cece"]
    (dataset,) = about["datasets"]
    assert (dataset["source"], dataset["title"]) == ("phantom", "Toy set")
    assert dataset["patients"] == {}  # every case is a patient of its own
    assert dataset["structures"] == ["liver", "spleen", "kidneys", "lesion"]
    methods = {method["name"]: method for method in about["methods"]}
    assert methods["nacl"]["paper"] == "NACL .1"
    assert methods["mbls"]["group"] == "ablation"
    runs = {run["run"]: run for run in about["runs"]}
    assert list(runs) == [
        f"toy/{method}/seed{seed}" for method in ("nacl", "broken", "mbls") for seed in (0, 1)
    ]
    for name, run in runs.items():
        broken = "broken" in name
        assert run["state"] == ("failed" if broken else "done")
        assert ("NaN or infinite" in run["error"]) == broken
        assert (study.folder / run["folder"] / "cases.csv").exists() != broken
        assert "\n" not in run["error"]
        course = run["training"]
        assert (course is None) == broken
        if course is not None:
            log = (study.folder / run["folder"] / "log.jsonl").read_text().splitlines()
            dsc, ece = ([json.loads(line)["val"][key] for line in log] for key in ("dsc", "ece"))
            assert course == {
                "epochs": len(dsc), "best_epoch": 1 + dsc.index(max(dsc)),
                "best_dsc": max(dsc), "last_dsc": dsc[-1], "tested_epoch": 1 + dsc.index(max(dsc)),
                "restarted_epoch": None,
                "course": {
                    "epochs": [1 + n for n in range(len(dsc))],
                    "dsc": [round(value, 4) for value in dsc],
                    "ece": [round(value, 4) for value in ece],
                },
            }  # fmt: skip
    (trained,) = about["environment"]["trained"]
    assert trained["runs"] == 4
    assert trained["device"]
    assert trained["versions"]["torch"] == torch.__version__
    table = pd.read_csv(study.folder / "cases.csv")
    assert set(table["run"]) == {name for name in runs if "broken" not in name}
    assert len(table) == sum(
        len(pd.read_csv(study.folder / run["folder"] / "cases.csv"))
        for run in runs.values()
        if run["state"] == "done"
    )
    assert about["table_bytes"] is None
    # Of the methods to rank only one has rows, and mbls is a variant.
    assert study.ranked == ["nacl", "broken"]
    assert (about["reference"], about["reference_late"]) == ("nacl", False)
    assert study.ranks is None
    assert "fewer than two methods" in study.not_ranked
    assert not (study.folder / "ranks.csv").exists()
    assert list(study.failed) == ["toy/broken/seed0", "toy/broken/seed1"]


def test_sigmoid_heads(data: Path, tmp_path: Path) -> None:
    plan = make_plan(data, {"ce": {"loss": "ce"}})
    heads = {"heads": {"organs": [1, 2], "liver": [1]}}
    changed = {**plan.train, "epochs": 1, "data": heads}
    done = run_benchmark(plan.model_copy(update={"train": changed}), tmp_path / "s", silent=True)
    study = read_study(done.folder)
    assert study.datasets["toy"].structures == ("organs", "liver")
    assert study.datasets["toy"].class_name("2") == "liver"
    assert set(study.table[study.table["metric"] == "ece"]["label"]) == {"organs", "liver"}


def test_grids_are_chosen_on_validation_cases(study: BenchmarkStudy) -> None:
    about = json.loads((study.folder / "study.json").read_text())
    method = about["methods"][-1]
    searched = {c["options"]["margin"]: c["val_dsc"] for c in method["chosen_from"]}
    assert set(searched) == {3, 10}
    best = max(searched, key=lambda margin: searched[margin])
    assert method["options"] == {"loss": "mbls", "margin": best}
    for margin, value in searched.items():
        folder = study.folder / f"runs/toy/mbls@margin={margin}/seed0"
        found = read_evaluation(folder, "val")
        assert found is not None
        assert found.means()["dsc"] == value
        # Those that were not chosen have never seen the test cases.
        assert (read_evaluation(folder) is not None) == (margin == best)
    assert about["runs"][-1]["folder"] == f"runs/toy/mbls@margin={best}/seed1"
    for candidate in method["chosen_from"]:
        (training,) = candidate["trainings"]
        folder = study.folder / f"runs/toy/mbls@margin={candidate['options']['margin']}/seed0"
        found = read_evaluation(folder, "val")
        assert found is not None
        assert candidate["val_ece"] == found.means(about["region"])["ece"]
        assert training["epochs"] == len(training["course"]["dsc"])
        # The network that was judged is the one of the best epoch, in higher precision.
        assert candidate["val_dsc"] == pytest.approx(training["best_dsc"], abs=0.01)


def test_finished_runs_are_kept_when_a_study_grows(
    study: BenchmarkStudy, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="is not empty; continue it with --resume"):
        run_benchmark(study.plan, study.folder)
    before = {p: p.stat().st_mtime_ns for p in study.folder.rglob("*.pt")}
    table = (study.folder / "cases.csv").read_bytes()
    grown = make_plan(data, {"nacl": METHODS["nacl"], "ls": {"loss": "ls"}}, seeds=[0])
    again = run_benchmark(grown, study.folder, resume=True)
    assert "1 finished runs are kept" in capfd.readouterr().err
    assert [task.run for task in again.done()] == ["toy/nacl/seed0", "toy/ls/seed0"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    # And the study as it was, with no worker at all: only the failed runs are tried again.
    methods = {name: METHODS[name] for name in ("nacl", "mbls")}
    whole = run_benchmark(
        make_plan(data, methods, seeds=[0, 1]), study.folder, resume=True, silent=True
    )
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert (study.folder / "cases.csv").read_bytes() == table
    assert all(result.seconds > 0 for result in whole.results.values())


def wait_until(what: Any, seconds: float = 400) -> None:
    for _ in range(int(seconds / 0.02)):
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("timed out")


def running_pid(study: Path) -> int | None:
    """The process of a run that is in the middle of its epochs."""
    for log in study.rglob("log.jsonl"):
        if 0 < log.read_text().count("\n") < 40 and not (log.parent / "evaluation.json").exists():
            holder = (log.parent / ".lock").read_text().split()
            if holder:  # empty while the lock is being taken
                return int(holder[1])
    return None


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def long_plan(data: Path) -> Plan:
    """Long enough to be hit in the middle."""
    methods = {"nacl": METHODS["nacl"], "ls": {"loss": "ls"}}
    train = {**make_plan(data, methods).train, "epochs": 40}
    return make_plan(data, methods, train=train)


@pytest.fixture(scope="module")
def whole(long_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkStudy:
    """The long study, never stopped."""
    return run_benchmark(long_plan, tmp_path_factory.mktemp("whole") / "study", silent=True)


def check_equal(out: Path, whole: BenchmarkStudy) -> None:
    for name in ("cases.csv", "ranks.csv"):
        assert (out / name).read_bytes() == (whole.folder / name).read_bytes()
    runs = [json.loads((f / "study.json").read_text())["runs"] for f in (out, whole.folder)]
    for run in runs[0] + runs[1]:
        run.pop("seconds")
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_tables(
    long_plan: Plan, whole: BenchmarkStudy, tmp_path: Path
) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "study"
    file.write_text(to_yaml(long_plan))
    command = ("benchmark", file, "--out", out, "--resume", "--no-report")
    process = start(*command)
    wait_until(lambda: running_pid(out) or process.poll() is not None)
    worker = running_pid(out)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    # The killed study can be read, and its workers ended with it.
    assert read_study(out).info.runs[1].state == "missing"
    assert worker is not None
    wait_until(lambda: not alive(worker), 20)
    code, said = finish(start(*command))
    assert code == 0, said
    assert "2/2" in said
    assert "sum rank" in said
    check_equal(out, whole)


@pytest.mark.slow
def test_a_dead_worker_is_retried_and_ctrl_c_saves(
    long_plan: Plan, whole: BenchmarkStudy, tmp_path: Path
) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "study"
    file.write_text(to_yaml(long_plan))
    command = ("benchmark", file, "--out", out, "--resume", "--no-report", "--jobs", "2")
    process = start(*command)
    wait_until(lambda: running_pid(out))
    process.send_signal(signal.SIGINT)
    code, said = finish(process)
    assert code == 130, said
    assert "stopped; continue with --resume" in said
    assert running_pid(out) is None or not alive(running_pid(out) or 0)
    process = start(*command)
    wait_until(lambda: alive(running_pid(out) or 0))
    os.kill(running_pid(out) or 0, signal.SIGKILL)
    code, said = finish(process)
    assert code == 0, said
    assert "killed by SIGKILL (out of memory?); retrying" in said
    check_equal(out, whole)


@pytest.mark.slow
def test_without_retries_the_other_runs_continue(long_plan: Plan, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "study"
    file.write_text(to_yaml(long_plan))
    process = start("benchmark", file, "--out", out, "--retries", "0", "--no-report")
    wait_until(lambda: running_pid(out))
    os.kill(running_pid(out) or 0, signal.SIGKILL)
    code, said = finish(process)
    assert code == 1, said
    assert "toy/nacl/seed0 failed: its process was killed by SIGKILL" in said
    states = [run["state"] for run in json.loads((out / "study.json").read_text())["runs"]]
    assert states == ["failed", "done"]


@pytest.mark.slow
def test_ray_with_a_worker_killed_in_the_middle(
    long_plan: Plan, whole: BenchmarkStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # a busy machine would starve it
    file, out = tmp_path / "plan.yaml", tmp_path / "study"
    file.write_text(to_yaml(long_plan))
    process = start(
        "benchmark", file, "--out", out, "--launcher", "ray", "--address", "local", "--jobs", "2",
        "--no-report",
    )  # fmt: skip
    try:
        wait_until(lambda: running_pid(out) or process.poll() is not None)
    except AssertionError:
        process.terminate()
        raise
    worker = running_pid(out)
    assert worker is not None, finish(process)
    name = subprocess.run(["ps", "-o", "args=", str(worker)], capture_output=True, text=True).stdout
    assert "ray::" in name
    os.kill(worker, signal.SIGKILL)
    code, said = finish(process)
    assert code == 0, said
    check_equal(out, whole)
    again = [p.read_text() for p in (out / "logs").iterdir()]
    assert any("resuming" in text for text in again)


def test_workers_share_gpus_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("segcal.benchmark.local_launcher.cores", lambda: 16)
    found = [worker_environment(n, 8, ["2", "5"]) for n in range(4)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["2", "5", "2", "5"]
    assert found[0]["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert worker_environment(0, 8, [])["OMP_NUM_THREADS"] == "3"


def test_one_study_at_a_time_and_no_foreign_folder(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    with pytest.raises(ValueError, match="holds files but no study"):
        run_benchmark(plan, tmp_path / "letters", resume=True)
    with pytest.raises(ValueError, match="`--launcher`"):
        run_benchmark(plan, tmp_path / "new", launcher="slurm")
    with pytest.raises(ValueError, match="`--jobs`"):
        run_benchmark(plan, tmp_path / "new", jobs=0)
    assert not (tmp_path / "new").exists()
