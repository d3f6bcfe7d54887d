"""Resuming: after kills and signals, with damaged or foreign files, in a folder in use."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import finish, phantom, same, settings, start, weights
from segcal.config import to_yaml
from segcal.core.errors import PathError
from segcal.data import SliceDataset
from segcal.models import read_checkpoint, write_checkpoint
from segcal.study import read_training
from segcal.study.run_folder import read_log
from segcal.training import Interrupted, NonFiniteLossError, train
from segcal.training.state import TrainingState

EPOCHS = 14


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=14, size=32)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """One thread, as in the processes: sums of floats then have a fixed order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def long_settings(data: Path) -> Any:
    """With everything that has a state: Adam, EMA, schedules, dropout, augmentation."""
    return settings(
        data,
        epochs=EPOCHS,
        device="cpu",  # where it is slow enough to be interrupted
        ema=0.9,
        clip=1.0,
        batch_size=2,
        loss={"schedule": {"name": "linear", "options": {"start": 0.0, "end": 0.1, "epochs": 9}}},
        model={
            "name": "monai.BasicUNet",
            "options": {"features": [4, 4, 4, 4, 4, 4], "dropout": 0.3},
        },
        optimizer={"milestones": [12]},
        augment=[{"name": "RandGaussianNoised", "options": {"prob": 0.5}}],
    )


@pytest.fixture(scope="module")
def config_file(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(to_yaml(long_settings(data)))
    return path


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without interruption."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole") / "run"
    train(long_settings(data), out)
    torch.set_num_threads(before)
    return out


def wait_for_epochs(process: "subprocess.Popen[str]", run: Path, epochs: int) -> None:
    """Wait until the log has this many lines."""
    log = run / "log.jsonl"
    for _ in range(6000):
        if process.poll() is not None or (log.is_file() and log.read_text().count("\n") >= epochs):
            return
        time.sleep(0.02)
    raise AssertionError(f"the run did not reach epoch {epochs}")


def check_equal(run: Path, whole: Path) -> None:
    ours, theirs = (torch.load(r / "last.pt", weights_only=True) for r in (run, whole))
    assert same(ours["model"], theirs["model"])
    assert same(ours["ema"], theirs["ema"])
    assert ours["best"] == theirs["best"]
    assert same(weights(run / "best.pt"), weights(whole / "best.pt"))
    logs = [
        [json.loads(line) for line in (r / "log.jsonl").read_text().splitlines()]
        for r in (run, whole)
    ]
    for row in logs[0] + logs[1]:
        row.pop("seconds")
    assert logs[0] == logs[1]
    assert [row["epoch"] for row in logs[0]] == list(range(EPOCHS))


def kill_and_resume(kills: int, seed: int, config_file: Path, out: Path, whole: Path) -> None:
    chance = random.Random(seed)
    for number in range(kills):
        process = start("train", "--config", config_file, "--out", out, "--resume")
        wait_for_epochs(process, out, 1 + number * EPOCHS // (kills + 1))
        time.sleep(chance.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
        assert process.returncode in (-signal.SIGKILL, 0)
    code, output = finish(start("train", "--out", out, "--resume"))
    assert code == 0, output
    check_equal(out, whole)


def test_a_killed_and_resumed_run_ends_with_the_same_weights(
    config_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    kill_and_resume(1, 0, config_file, tmp_path / "run", uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_run_killed_many_times_ends_with_the_same_weights(
    seed: int, config_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    kill_and_resume(6, seed, config_file, tmp_path / "run", uninterrupted)


def test_sigterm_saves_within_an_epoch_and_the_folder_is_locked(
    config_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start("train", "--config", config_file, "--out", out)
    wait_for_epochs(process, out, 2)
    process.send_signal(signal.SIGSTOP)  # a fast machine would finish the training meanwhile
    # Another process must not use the folder at the same time.
    with pytest.raises(PathError, match=f"in use by process {process.pid}"):
        train(long_settings(_data_of(config_file)), out, resume=True)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    code, output = finish(process)
    assert code == 128 + signal.SIGTERM, output
    assert "continue with --resume" in output
    assert output.strip().splitlines()[-1].startswith("segcal: ")
    # The lock was released with the process; this process trains the rest.
    train(long_settings(_data_of(config_file)), out, resume=True)
    check_equal(out, uninterrupted)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_signal_for_the_workers_as_well_saves_the_state(
    waiting: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler signals every process: in a step, or while the next batch is waited for."""
    config = settings(data, batch_size=1, device="cpu", data={"loader": "stream", "workers": 2})
    whole, out = tmp_path / "whole", tmp_path / "run"
    train(config, whole)
    trainer, (place, read) = os.getpid(), (TrainingState.place, SliceDataset.__getitem__)

    def end_all() -> None:
        os.kill(trainer, signal.SIGTERM)
        for child in multiprocessing.active_children():
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if os.getpid() != trainer:
            os._exit(1)

    def place_and_signal(state: TrainingState, batch: Any, step: int) -> Any:
        if not waiting and step == 5:
            end_all()
        return place(state, batch, step)

    def signal_and_read(dataset: SliceDataset, index: int) -> Any:
        if waiting and index == 5:
            end_all()
        return read(dataset, index)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "place", place_and_signal)
        patch.setattr(SliceDataset, "__getitem__", signal_and_read)
        with pytest.raises(Interrupted, match="stopped by SIGTERM in epoch 1"):
            train(config, out)
    train(config, out, resume=True)
    assert same(weights(out / "last.pt"), weights(whole / "last.pt"))


def _data_of(config_file: Path) -> Path:
    import yaml

    return Path(yaml.safe_load(config_file.read_text())["data"]["path"])


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_an_interrupted_run_names_the_signal(
    number: int, name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TrainingState.place

    def place_and_signal(state: TrainingState, batch: Any, step: int) -> Any:
        signal.raise_signal(number)
        return place(state, batch, step)

    monkeypatch.setattr(TrainingState, "place", place_and_signal)
    with pytest.raises(Interrupted, match=f"stopped by {name} in epoch 1") as caught:
        train(settings(data), tmp_path / "run")
    assert caught.value.number == number


def test_a_run_can_be_stopped_at_every_step(data: Path, tmp_path: Path) -> None:
    """One run per step, each stopped by SIGTERM before that step."""
    config = settings(data, epochs=2, batch_size=4, ema=0.9)
    train(config, tmp_path / "whole")
    steps = 2 * len(range(0, 10, 4))
    place = TrainingState.place
    for stop in range(steps + 1):
        out, count = tmp_path / str(stop), iter(range(1000))

        def place_and_signal(
            state: TrainingState, batch: Any, step: int, count: Any = count, stop: int = stop
        ) -> Any:
            if next(count) == stop:
                signal.raise_signal(signal.SIGTERM)
            return place(state, batch, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingState, "place", place_and_signal)
            with suppress(Interrupted):
                train(config, out)
        train(config, out, resume=True)
        for name in ("last.pt", "best.pt"):
            assert same(weights(out / name), weights(tmp_path / "whole" / name)), (stop, name)


@pytest.fixture
def finished(data: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    train(settings(data, epochs=3), out)
    return out


def test_the_previous_checkpoint_replaces_a_damaged_one(
    finished: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, expected_before = (weights(finished / n) for n in ("last.pt", "last.prev.pt"))
    blob = bytearray((finished / "last.pt").read_bytes())
    blob[len(blob) // 2] ^= 1
    (finished / "last.pt").write_bytes(blob)
    train(settings(data, epochs=3), finished, resume=True)
    output = capsys.readouterr().err
    assert "last.pt: is damaged" in output
    assert "last.refused.pt" in output
    assert "last.prev.pt" in output
    assert (finished / "last.refused.pt").read_bytes() == blob
    assert same(weights(finished / "last.pt"), expected)
    # The damaged file must not have replaced the valid one.
    assert same(weights(finished / "last.prev.pt"), expected_before)
    for name in ("last.pt", "last.prev.pt"):
        (finished / name).write_bytes(b"nothing")
    with pytest.raises(PathError, match=r"last\.pt: is damaged"):
        train(settings(data, epochs=3), finished, resume=True)


def test_a_checkpoint_of_another_run_is_not_used(
    finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = weights(finished / "last.pt")
    train(settings(data, epochs=1, seed=5), tmp_path / "other")
    (finished / "last.pt").write_bytes((tmp_path / "other" / "last.pt").read_bytes())
    train(settings(data, epochs=3), finished, resume=True)
    assert "last.pt: belongs to another run" in capsys.readouterr().err
    assert same(weights(finished / "last.pt"), expected)


def test_only_the_number_of_epochs_can_be_changed(finished: Path, data: Path) -> None:
    with pytest.raises(PathError, match=r"another `optimizer\.lr`"):
        train(settings(data, epochs=3, optimizer={"lr": 0.5}), finished, resume=True)
    with pytest.raises(PathError, match=r"another `loss\.name`"):
        train(settings(data, epochs=3, loss={"name": "ce"}), finished, resume=True)
    assert train(settings(data, epochs=4), finished, resume=True).epochs == 4


def test_the_number_of_epochs_cannot_be_decreased(finished: Path, data: Path) -> None:
    config = (finished / "config.yaml").read_text()
    with pytest.raises(PathError, match=r"`epochs`.*3, not 1"):
        train(settings(data, epochs=1), finished, resume=True)
    assert (finished / "config.yaml").read_text() == config


@pytest.mark.parametrize("part", ["val", "test"])
def test_splits_that_share_a_case_are_an_error(data: Path, tmp_path: Path, part: str) -> None:
    """splits.json may have been edited; validation must not use training cases."""
    ours = tmp_path / "data"
    shutil.copytree(data, ours)
    splits = json.loads((ours / "splits.json").read_text())
    name = splits[part][0]
    splits["train"].append(name)
    (ours / "splits.json").write_text(json.dumps(splits))
    with pytest.raises(PathError, match=rf"splits\.json: {name} .* shares its patient with {name}"):
        train(settings(ours, epochs=1), tmp_path / "run")
    splits["train"][-1] = "missing"
    (ours / "splits.json").write_text(json.dumps(splits))
    with pytest.raises(PathError, match=r"splits\.json: .*missing"):
        train(settings(ours, epochs=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_data_are_an_error(finished: Path, tmp_path: Path) -> None:
    other = phantom(tmp_path / "other", dims=2, cases=14, size=32, seed=1)
    with pytest.raises(PathError, match="other data"):
        train(settings(other, epochs=3), finished, resume=True)


def test_other_splits_are_an_error(data: Path, tmp_path: Path) -> None:
    ours = tmp_path / "data"
    shutil.copytree(data, ours)
    train(settings(ours, epochs=1), tmp_path / "run")
    splits = json.loads((ours / "splits.json").read_text())
    splits["train"][0], splits["val"][0] = splits["val"][0], splits["train"][0]
    (ours / "splits.json").write_text(json.dumps(splits))
    before = (tmp_path / "run" / "last.pt").read_bytes()
    with pytest.raises(PathError, match=r"other train cases.*such as phantom_0000; .*splits"):
        train(settings(ours, epochs=2), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "last.pt").read_bytes() == before


def test_the_data_may_have_moved(finished: Path, data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(data, moved)
    assert train(settings(moved, epochs=4), finished, resume=True).epochs == 4
    assert read_checkpoint(finished / "last.pt")["epoch"] == 4
    assert _data_of(finished / "config.yaml") == moved


def test_resume_without_a_run_starts_one(data: Path, tmp_path: Path) -> None:
    assert train(settings(data, epochs=1), tmp_path / "new", resume=True).epochs == 1


def test_nan_stops_the_run_and_names_the_cases(data: Path, tmp_path: Path) -> None:
    config = settings(data, optimizer={"lr": 1e30})
    with pytest.raises(NonFiniteLossError, match=r"epoch 1, in a batch of phantom_\d{4}"):
        train(config, tmp_path / "run")
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert state["epoch"] == 0
    assert all(bool(value.isfinite().all()) for value in state["model"].values())


def test_nan_is_one_line_and_exit_code_1(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers.trees import run_cli

    options = ["--set", "optimizer.lr=1e30", "--set", "model.options={filters: [4, 8], pools: [2]}"]
    out = tmp_path / "run"
    command = ["train", "--recipe", "paper", "--data", data, "--loss", "ce", "--out", out]
    code = run_cli(monkeypatch, *command, *options)
    assert code == 1
    output = capsys.readouterr().err
    start, error = output.splitlines()
    assert start.startswith(f"{out}: ")
    assert "training cases" in start
    assert error.startswith("segcal: ")
    # Invalid arguments have exit code 2.
    assert run_cli(monkeypatch, "train", "--data", data, "--out", out) == 2
    assert "--resume" in capsys.readouterr().err
    assert run_cli(monkeypatch, "train", "--out", tmp_path / "new") == 2
    assert "--data" in capsys.readouterr().err
    assert run_cli(monkeypatch, "train", "--out", tmp_path / "new", "--resume") == 2
    assert f"{tmp_path / 'new'}: holds no run" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_optimizer_settings_are_those_of_the_device(finished: Path, data: Path) -> None:
    """The state may come from a GPU, where the optimizer was fused and captured."""
    content = read_checkpoint(finished / "last.pt")
    for group in content["optimizer"]["param_groups"]:
        group.update(fused=True, capturable=True)
    write_checkpoint(finished / "last.pt", content)
    assert train(settings(data, epochs=4, device="cpu"), finished, resume=True).epochs == 4
    (group,) = read_checkpoint(finished / "last.pt")["optimizer"]["param_groups"]
    assert not group["capturable"]
    assert not group["fused"]


def test_cuda_graph_can_be_changed(finished: Path, data: Path) -> None:
    config = settings(data, epochs=4, cuda_graph="off")
    assert train(config, finished, resume=True).epochs == 4


FULL = """
import resource, sys, torch
from pathlib import Path
from segcal.models import write_checkpoint
path = Path(sys.argv[1])
write_checkpoint(path, {"weights": torch.zeros(10)})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    write_checkpoint(path, {"weights": torch.zeros(1_000_000)})
except ValueError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    output = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "last.pt: cannot be written (" in output
    assert "MiB are free" in output or "too large" in output
    assert len(output.splitlines()) == 1
    assert len(read_checkpoint(path)["weights"]) == 10
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_breakdown_is_printed_once(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From epoch 23 on the learning rate is a thousand times too high."""
    config = settings(
        data, epochs=26, loss={"name": "ce_dice"},
        model={"options": {"filters": [8, 16, 32], "pools": [2, 2]}},
        optimizer={"lr": 0.01, "milestones": [22], "factor": 1e3},
    )  # fmt: skip
    result = train(config, tmp_path / "run")
    assert result.best_dsc > 0.3
    output = [line for line in capfd.readouterr().err.splitlines() if "broken down" in line]
    (line,) = output
    assert line.startswith("epoch 23: ")
    numbers = (_dsc(tmp_path / "run", 23), result.best_dsc)
    for fact in (*(f"{n:.4f}" for n in numbers), "best.pt", "`optimizer.lr`", "`clip`"):
        assert fact in line


def test_a_breakdown_continues_from_the_best_weights_once_and_resumes_exactly(
    data: Path, tmp_path: Path
) -> None:
    """With augmentation, averaged weights and decay; stopped and resumed after the restart."""
    config = settings(
        data, epochs=26, loss={"name": "ce_dice"}, recover=True, ema=0.5, select="both",
        augment=[{"name": "batched", "options": {"flip": 0}}],
        model={"name": "norm_unet", "options": {"filters": [8, 16, 32]}},
        optimizer={"lr": 0.01, "milestones": [22], "factor": 1e3, "warmup": 1},
    )  # fmt: skip
    train(config, tmp_path / "whole")
    rows = read_log(tmp_path / "whole")
    restarted = [row for row in rows if "restarted_from" in row]
    (row,) = restarted  # it breaks down again, but only one restart is allowed
    before = row["epoch"]
    assert row["restarted_from"] == max(r["epoch"] for r in rows[:before] if r["selected"])
    assert rows[before + 1]["lr"] == rows[before]["lr"] / 2
    summary = read_training(tmp_path / "whole")
    assert summary is not None
    assert summary.restarted_epoch == before + 1
    count, place = iter(range(10**6)), TrainingState.place

    def place_and_signal(state: TrainingState, batch: Any, step: int) -> Any:
        if state.epoch == before + 1 and step == 1 and next(count) == 0:
            signal.raise_signal(signal.SIGTERM)
        return place(state, batch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "place", place_and_signal)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    ours, theirs = (
        torch.load(tmp_path / r / "last.pt", weights_only=True) for r in ("run", "whole")
    )
    assert same(ours["model"], theirs["model"])
    assert same(ours["ema"], theirs["ema"])
    assert ours["best"] == theirs["best"]
    assert ours["lr_scale"] == 0.5
    for log in (rows, resumed := read_log(tmp_path / "run")):
        for row in log:
            row.pop("seconds")
    assert resumed == rows


def _dsc(run: Path, epoch: int) -> float:
    line = (run / "log.jsonl").read_text().splitlines()[epoch - 1]
    return float(json.loads(line)["val"]["dsc"])


def test_moments_follow_the_layout_of_their_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run started on a CPU may be resumed on a GPU, where fused Adam requires it."""
    train(settings(data, epochs=1, channels_last="on"), tmp_path / "run")
    changed = []
    restored = TrainingState.load_state_dict

    def restore(training: TrainingState, state: dict[str, Any]) -> None:
        for moments in state["optimizer"]["state"].values():
            for name in ("exp_avg", "exp_avg_sq"):
                changed.append(not moments[name].is_contiguous())
                moments[name] = moments[name].contiguous()
        restored(training, state)
        for weight, moments in training.optimizer.state.items():
            assert moments["exp_avg"].stride() == weight.stride()
            assert moments["exp_avg_sq"].stride() == weight.stride()

    monkeypatch.setattr(TrainingState, "load_state_dict", restore)
    train(settings(data, epochs=2, channels_last="on"), tmp_path / "run", resume=True)
    assert any(changed)
