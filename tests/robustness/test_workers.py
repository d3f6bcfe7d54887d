"""Workers of torchrun and Ray, and launchers, killed at random: --resume gives the same result."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.runs import environment, phantom, same, settings, weights
from segcal.config import to_yaml

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = Path(sys.executable).with_name("segcal")
TORCHRUN = ("-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--no-python", str(SCRIPT))  # fmt: skip
PLAN = """
datasets: {toy: {}}
methods: {ce: {loss: ce}, nacl: {loss: nacl}}
metrics: [dsc, ece]
train:
  epochs: 3
  batch_size: 4
  precision: '32'
  model: {name: unet, options: {filters: [4, 8], pools: [2]}}
"""


def descendants(marker: str) -> dict[int, str]:
    """Process id → command line of every process that has `marker` in its environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"SEGCAL_TRIAL={marker}".encode() in (entry / "environ").read_bytes():
                status = (entry / "status").read_text()
                if "State:\tZ" not in status:
                    text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = text
        except OSError:
            continue
    return found


def start(folder: Path, marker: str, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={
            **environment(),
            "SEGCAL_TRIAL": marker,
            "RAY_TMPDIR": f"/tmp/segcal-ray-{os.getpid()}",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, text = process.communicate(timeout=600)
    return process.returncode, text


def check_no_orphans(marker: str) -> None:
    """All processes of a trial end soon after their launcher."""
    deadline = time.monotonic() + 180  # Ray ends its own services after a minute or more
    while (found := descendants(marker)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not found


def kill_one(process: "subprocess.Popen[str]", marker: str, which: str, after_s: float) -> None:
    """SIGKILL to the launcher, or to one worker whose command line contains `which`."""
    time.sleep(after_s)
    found = [pid for pid, text in descendants(marker).items() if which in text]
    victims = [process.pid] if which == "launcher" else sorted(set(found) - {process.pid})
    if process.poll() is None and victims:
        os.kill(random.Random(after_s).choice(victims), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not SCRIPT.exists(), reason="the script segcal is not installed")
def test_torchrun(tmp_path: Path) -> None:
    phantom(tmp_path / "set", dims=2, cases=20, size=32)
    (tmp_path / "c.yaml").write_text(to_yaml(settings(Path("set"), epochs=4)))
    train = ("train", "--config", "c.yaml", "--resume", "--out")
    code, text = finish(start(tmp_path, "whole", *TORCHRUN, *train, "whole"))
    assert code == 0, text
    for trial, (which, after_s) in enumerate(
        (which, after_s) for after_s in (12.0,) for which in ("segcal", "launcher")
    ):
        out = f"out{trial}"
        process = start(tmp_path, out, *TORCHRUN, *train, out)
        kill_one(process, out, which, after_s)
        process.communicate(timeout=600)
        check_no_orphans(out)
        code, text = finish(start(tmp_path, f"{out}b", *TORCHRUN, *train, out))
        assert code == 0, text
        assert same(weights(tmp_path / out / "last.pt"), weights(tmp_path / "whole" / "last.pt"))
        check_no_orphans(f"{out}b")
        assert not list((tmp_path / out).glob(".partial-*"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ray", "local"])
def test_benchmark(tmp_path: Path, launcher: str) -> None:
    if launcher == "ray":
        pytest.importorskip("ray")
    phantom(tmp_path / "set", cases=8, slices=4, size=32)
    (tmp_path / "plan.yaml").write_text(PLAN)
    study = ("-P", "-m", "segcal", "benchmark", "plan.yaml", "--data", "toy=set", "--no-report",
             "--jobs", "2", "--launcher", launcher, "--resume", "--out")  # fmt: skip
    worker = "ray::" if launcher == "ray" else "segcal.benchmark.worker"
    code, text = finish(start(tmp_path, "whole", *study, "whole"))
    assert code == 0, text
    expected = (tmp_path / "whole" / "cases.csv").read_bytes()
    delays = (25.0,) if launcher == "ray" else (2.0, 6.0)
    for trial, (which, after_s) in enumerate(
        (which, after_s) for after_s in delays for which in (worker, "launcher")
    ):
        out = f"out{trial}"
        process = start(tmp_path, out, *study, out)
        kill_one(process, out, which, after_s)
        process.communicate(timeout=600)
        check_no_orphans(out)
        code, text = finish(start(tmp_path, f"{out}b", *study, out))
        assert code == 0, text
        assert (tmp_path / out / "cases.csv").read_bytes() == expected
        check_no_orphans(f"{out}b")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "prepare", "local", "ray", "torchrun"])
def test_stray_modules_are_not_executed(tmp_path: Path, command: str) -> None:
    """Files of the working folder that are named like modules of the standard library."""
    if command == "ray":
        pytest.importorskip("ray")
    if command == "torchrun" and not SCRIPT.exists():
        pytest.skip("the script segcal is not installed")
    phantom(tmp_path / "set", cases=8, slices=4, size=32)
    (tmp_path / "c.yaml").write_text(to_yaml(settings(Path("set"), epochs=1)))
    (tmp_path / "plan.yaml").write_text(PLAN.replace("epochs: 3", "epochs: 1"))
    for name in ("html", "yaml", "queue", "csv", "pandas", "sitecustomize", "ctypes", "cmath"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    train = ("train", "--config", "c.yaml", "--out", "out")
    study = ("-P", "-m", "segcal", "benchmark", "plan.yaml", "--data", "toy=set", "--no-report",
             "--jobs", "2", "--out", "out", "--launcher", command)  # fmt: skip
    calls = {
        "train": ("-P", "-m", "segcal", *train),
        "prepare": ("-P", "-m", "segcal", "prepare", "phantom", "--cases", "4", "--slices", "4",
                    "--size", "32", "--workers", "2", "--out", "out"),
        "torchrun": (*TORCHRUN, *train),
    }  # fmt: skip
    process = start(tmp_path, command, *calls.get(command, study))
    code, text = finish(process)
    assert code == 0, text
    assert not (tmp_path / "executed").exists()
