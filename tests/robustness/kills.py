"""Kill commands at every change of the file system, run them again, and compare the results.

python tests/robustness/kills.py [--every 1]

Each trial is a fork of this process: the command runs until its N-th change of a file or folder
(open for writing, rename, remove, mkdir, …), gets SIGKILL, and is then run again to the end. The
second run must succeed, give the same content as a run that was not killed, and leave no drafts.
"""

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
# Command; what the second start adds; files whose content must not depend on the kill.
COMMANDS = {
    "prepare": (
        "prepare phantom --out out --cases 8 --slices 4 --size 32 --workers 1",
        "",
        "out/dataset.yaml out/splits.json",
    ),
    "train": ("train --config config.yaml --out out", "--resume", "out/last.pt"),
    "evaluate": ("evaluate run --overwrite", "", "run/cases.csv"),
    "predict": ("predict run --input images --out out", "", "out/*_labels.nii.gz"),
    "calibrate": ("calibrate --probs nnunet --labels labels --out out.json", "--overwrite", ""),
    "apply": ("apply cal.json --probs nnunet --out out", "--overwrite", "out/*.npz"),
    "audit": ("audit --probs nnunet --labels labels --out out", "--overwrite", "out/cases.csv"),
    "rank": ("rank study/cases.csv --out out --missing worst", "", "out/ranks.csv"),
    "report": ("report study --out out", "", "out/tables/*.csv"),
    "benchmark": (
        "benchmark plan.yaml --out out --data toy=set --no-report",
        "--resume",
        "out/cases.csv",
    ),
}


def build(root: Path) -> None:
    from hostile import build as build_world

    build_world(root)
    config = (root / "run" / "config.yaml").read_text().replace(str(root) + "/", "")
    (root / "config.yaml").write_text(config.replace("epochs: 1", "epochs: 2"))
    (root / "images").mkdir()
    import nibabel as nib

    for number in range(2):
        voxels = np.random.default_rng(number).normal(size=(32, 32, 4)).astype(np.float32)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), root / "images" / f"case{number}.nii.gz")
    (root / "plan.yaml").write_text(
        "datasets: {toy: {}}\nmethods: {ce: {loss: ce}}\nmetrics: [dsc, ece]\n"
        "train: {epochs: 1, batch_size: 4, precision: '32',\n"
        "        model: {name: unet, options: {filters: [4, 8], pools: [2]}}}\n"
    )


def fork(action: Callable[[], int]) -> int:
    """The exit status of `action` in a child; -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 97
        try:
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch(folder: Path, last: int | None, count_file: Path | None = None) -> None:
    """Count changes below `folder`; kill this process at number `last`."""
    changes = 0
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    owner = os.getpid()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal changes
        if event == "open":
            flags = arguments[2]
            if not (isinstance(flags, int) and flags & writing) or not arguments[0]:
                return
        elif event not in CHANGES:
            return
        if os.getpid() != owner or str(folder) not in os.path.abspath(str(arguments[0])):
            return
        changes += 1
        if count_file is not None:
            os.pwrite(counter, changes.to_bytes(8, "little"), 0)
        if changes == last:
            os.kill(os.getpid(), signal.SIGKILL)

    counter = os.open(count_file, os.O_RDWR | os.O_CREAT) if count_file is not None else -1
    sys.addaudithook(hook)


def run(folder: Path, arguments: list[str], last: int | None, count: Path | None) -> int:
    """A command in a child; its exit code, with what it printed if it fails."""

    def action() -> int:
        import segcal.cli

        os.chdir(folder)
        printed = io.StringIO()
        sys.argv = ["segcal", *arguments]
        if last is not None or count is not None:
            watch(folder, last, count)
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                segcal.cli.run()
        except SystemExit as stop:
            code = int(stop.code or 0)
            if code:
                sys.__stderr__.write(printed.getvalue()[-2000:])
            return code
        except BaseException:
            sys.__stderr__.write(traceback.format_exc())
            return 98
        return 0

    return fork(action)


def contents(folder: Path, patterns: list[str]) -> dict[str, str]:
    """Hashes; of checkpoints only the weights count."""
    import torch

    found = {}
    for path in sorted(p for pattern in patterns for p in folder.glob(pattern)):
        data = path.read_bytes()
        if path.suffix == ".pt":
            model = torch.load(path, weights_only=True)["model"]
            data = b"".join(tensor.numpy().tobytes() for tensor in model.values())
        elif path.name == "dataset.yaml":
            data = next(line for line in data.splitlines() if line.startswith(b"fingerprint"))
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def drafts(folder: Path) -> list[str]:
    return [str(p.relative_to(folder)) for p in folder.rglob(".partial-*")]


def check(world: Path, name: str, every: int, offset: int = 0) -> tuple[int, list[str]]:
    """(kills, problems) of a command, killed at every `every`-th change."""
    command, more, files = COMMANDS[name]
    first, second, patterns = command.split(), f"{command} {more}".split(), files.split()
    problems, kills = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        shutil.copytree(world, root / "plain")
        count = root / "count"
        code = run(root / "plain", first, None, count)
        if code:
            return 0, [f"{name}: exit code {code} without a kill"]
        expected = contents(root / "plain", patterns)
        total = int.from_bytes(count.read_bytes(), "little")
        for last in range(1 + offset, total + 1, every):
            copy = root / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(world, copy)
            killed = run(copy, first, last, None)
            kills += killed == -signal.SIGKILL
            code = run(copy, second, None, None)
            where = f"{name}, killed at change {last} of {total}"
            if code:
                problems.append(f"{where}: second start ended with {code}")
            elif contents(copy, patterns) != expected:
                problems.append(f"{where}: other content")
            elif drafts(copy):
                problems.append(f"{where}: left {drafts(copy)[0]}")
    return kills, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="kill at every N-th change")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS))
    options = parser.parse_args()
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    import segcal.cli
    import segcal.evaluation
    import segcal.report
    import segcal.training  # noqa: F401  all imports before the forks

    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        world = Path(temporary)
        # In a child: torch's threads must not exist when this process forks.
        assert fork(lambda: (build(world), 0)[1]) == 0
        for name in options.only:
            kills, problems = check(world, name, options.every, options.offset)
            print(f"{name}: {kills} kills, {len(problems)} problems", flush=True)
            for problem in problems:
                print(f"  {problem}", flush=True)
            failed |= bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
