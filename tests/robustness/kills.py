"""Kill commands at every change of the file system, run them again, and compare the results.

python tests/robustness/kills.py [--every 1] [--only train evaluate …]

Each trial is a fork of this process: the command runs until the N-th change of a file or folder
(open for writing, rename, remove, mkdir, …) by itself or by its workers. Then the process that
makes the change, or the one that was started by the user, gets SIGKILL, and the command is run
again to the end. The second run must succeed, give the same content as a run that was not killed,
leave no drafts and no processes, and change nothing outside its output.
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from trials import HERE, check_commands, run_command

ORPHAN_S = 20.0


@dataclass(frozen=True)
class Command:
    """A command; what the second start adds; files whose content must not depend on the kill.

    `outputs` are the files and folders that it may change.
    """

    text: str
    again: str = ""
    files: str = ""
    outputs: str = "out"


FILE = "out.json"
FILES = "--probs nnunet --labels labels"
COMMANDS = {
    "prepare": Command(
        "prepare phantom --out out --cases 8 --slices 4 --size 32 --workers 1",
        files="out/dataset.yaml out/splits.json",
    ),
    "prepare_folder": Command(
        "prepare folder --source scans/nii.gz --out out --workers 2", files="out/dataset.yaml"
    ),
    "data_check": Command("data check set --figure out.png", outputs="out.png"),
    "train": Command("train --config config.yaml --out out", "--resume", "out/last.pt"),
    "train_folds": Command(
        "train --config config.yaml --out out --folds 0,1", "--resume", "out/*/last.pt"
    ),
    "evaluate": Command("evaluate run --overwrite", "", "run/cases.csv", "run"),
    "evaluate_external": Command(
        "evaluate run --data other --overwrite", "", "run/external/*/cases.csv", "run"
    ),
    "evaluate_several": Command("evaluate run run2 --out out", "--overwrite", "out/cases.csv"),
    "predict": Command(
        "predict run --input scans/nii.gz/images --out out --to both", "", "out/*.n*"
    ),
    "calibrate": Command(f"calibrate {FILES} --out out.json", "--overwrite", FILE, FILE),
    "calibrate_run": Command(
        "calibrate run --folds 0", "--overwrite", "run/calibrator_*.json", "run"
    ),
    "apply": Command("apply cal.json --probs nnunet --out out", "--overwrite", "out/*.npz"),
    "audit": Command(f"audit {FILES} --out out", "--overwrite", "out/cases.csv"),
    "assure_fit": Command(
        "assure fit --probs fit --labels fit_labels --out out.json",
        "--overwrite",
        "out.json",
        "out.json",
    ),
    "assure_fit_run": Command(
        "assure fit --run held_out --out out.json", "--overwrite", FILE, FILE
    ),
    "assure_apply": Command(
        "assure apply assurance.json --probs nnunet --out out --masks dice,outer",
        "--overwrite",
        "out/*.csv out/*/*.nii.gz",
    ),
    "assure_check": Command(
        f"assure check assurance.json {FILES} --out out", "--overwrite", "out/*.csv"
    ),
    "nnunet_apply": Command(
        "nnunet apply cal.json --predictions nnunet --out out", "--overwrite", "out/*.npz"
    ),
    "rank": Command("rank study/cases.csv --out out --missing worst", "", "out/ranks.csv"),
    "report": Command("report study --out out", "", "out/tables/*.csv"),
    "benchmark": Command(
        "benchmark plan.yaml --out out --data toy=set --jobs 2", "--resume", "out/cases.csv"
    ),
    "demo": Command("demo --quick --out out --jobs 2 --no-report", "", "out/study/cases.csv"),
}


def run(folder: Path, arguments: list[str], number: int, victim: str) -> int:
    """The exit code of a command; what it printed is shown if it fails.

    Changes are counted in the file `count` beside `folder`; `number` -1 does not watch.
    """

    def begin() -> None:
        from watched.sitecustomize import watch

        counter, own, root = str(folder.parent / "count"), os.getpid(), f"{folder.parent}{os.sep}"
        watch(root, counter, number, victim, own)
        os.environ["SEGCAL_KILL"] = f"{root}:{counter}:{number}:{victim}:{own}"

    ended, text = run_command(folder, arguments, begin if number >= 0 else None)
    if ended.code > 0:
        print(f"{' '.join(arguments)}: {text[-2000:]}", file=sys.stderr)
    return ended.code


def orphans() -> bool:
    """Whether a process outlives its command; it becomes a child of this one."""
    deadline = time.monotonic() + ORPHAN_S
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not found:
            if time.monotonic() > deadline:
                return True
            time.sleep(0.02)


def contents(folder: Path, patterns: list[str]) -> dict[str, str]:
    """Hashes; of checkpoints only the weights count, of JSON not the times and names of runs."""
    import torch

    found = {}
    for path in sorted(p for pattern in patterns for p in folder.glob(pattern)):
        data = path.read_bytes()
        if path.suffix == ".pt":
            model = torch.load(path, weights_only=True)["model"]
            data = b"".join(tensor.numpy().tobytes() for tensor in model.values())
        elif path.suffix == ".npz":  # the time of each member is stored with it
            with np.load(path) as arrays:
                data = b"".join(arrays[name].tobytes() for name in arrays)
        elif path.name.endswith(".nii.gz"):
            import gzip

            data = gzip.decompress(data)
        elif path.name == "dataset.yaml":
            data = next(line for line in data.splitlines() if line.startswith(b"fingerprint"))
        elif path.suffix == ".json":
            content = json.loads(data)
            data = repr({key: content[key] for key in content if key != "created"}).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def drafts(folder: Path) -> list[str]:
    return [str(p.relative_to(folder)) for p in folder.rglob(".partial-*")]


def changed_outside(world: Path, copy: Path, outputs: str) -> list[str]:
    """Files of `copy` that are new or changed, except the outputs and what verifies a set."""

    def stamps(root: Path) -> dict[str, tuple[int, int]]:
        files = (p for p in root.rglob("*") if p.is_file() and p.name != ".verified.json")
        return {str(p.relative_to(root)): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}

    old, new = stamps(world), stamps(copy)
    names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return sorted(n for n in names if Path(n).parts[0] not in outputs.split())


def is_probe(path: Path) -> bool:
    """Whether it is the file with which Python's `tempfile` tests a folder, killed meanwhile."""
    return path.is_file() and path.read_bytes() in (b"", b"blat")


def check(world: Path, name: str, every: int, offset: int = 0) -> tuple[int, list[str]]:
    """(kills, problems) of a command, killed at every `every`-th change."""
    command = COMMANDS[name]
    first, second = command.text.split(), f"{command.text} {command.again}".split()
    patterns = command.files.split()
    problems, kills = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        copy, scratch, count = root / "copy", root / "tmp", root / "count"

        def fresh() -> None:
            for folder in (copy, scratch):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(world, copy)
            scratch.mkdir()
            count.unlink(missing_ok=True)

        fresh()
        usual = run(copy, first, 0, "self")
        if usual not in (0, 1):
            return 0, [f"{name}: exit code {usual} without a kill"]
        expected = contents(copy, patterns)
        if patterns and not expected:
            return 0, [f"{name}: wrote no {command.files}"]
        problems += [f"{name}: wrote {p}" for p in changed_outside(world, copy, command.outputs)]
        total = int.from_bytes(count.read_bytes(), "little")
        for last in range(1 + offset, total + 1, every):
            fresh()
            victim = "self" if (last // every) % 2 else "launcher"
            run(copy, first, last, victim)
            kills += int.from_bytes(count.read_bytes(), "little") >= last
            where = f"{name}, {victim} killed at change {last} of {total}"
            if orphans():
                problems.append(f"{where}: left a process")
            code = run(copy, second, -1, "")
            if code != usual:
                problems.append(f"{where}: second start ended with {code}")
            elif contents(copy, patterns) != expected:
                problems.append(f"{where}: other content")
            elif drafts(copy):
                problems.append(f"{where}: left {drafts(copy)[0]}")
            elif left := [path.name for path in scratch.iterdir() if not is_probe(path)]:
                problems.append(f"{where}: left {left[0]} in TMPDIR")
            problems += [
                f"{where}: wrote {p}" for p in changed_outside(world, copy, command.outputs)
            ]
            if orphans():
                problems.append(f"{where}: left a process after the second start")
    return kills, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="kill at every N-th change")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--world", type=Path, help="a folder that world.build made")
    parser.add_argument("--only", nargs="*", default=list(COMMANDS))
    options = parser.parse_args()
    # The watcher is imported by worker processes when they start.
    paths = [str(HERE / "watched"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    check_commands(
        options.world,
        options.only,
        lambda world, name: check(world, name, options.every, options.offset),
    )


if __name__ == "__main__":
    main()
