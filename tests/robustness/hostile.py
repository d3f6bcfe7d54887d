"""Run commands on files of which one is damaged or hostile, and classify how they end.

python tests/robustness/hostile.py --trials 2000

Each trial copies a small working example, changes one file and runs one command in this process,
whose memory is limited. Allowed are success and one line that names a problem; a traceback, more
than 30 s of computing, or a file written outside the output folder is a failure.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SECONDS = 30
BYTES = 6 * 2**30  # of address space: torch alone reserves more than two thirds of it
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
# A dict whose key is a tuple of two equal tuples of two equal tuples …
TUPLES = (
    b"\x80\x02}("
    + b")"
    + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(1, 60))
    + b"K\x01u."
)
CONTENTS = [
    b"", b"\0" * 64, b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b"{}", b"0", b'"text"',
    ALIASES.encode(), TUPLES, b"a: 1\na: 2\n", b"PK\x03\x04" + b"\xff" * 60, b"\xff\xfe\x00",
    b"&a [*a]", b"1e999", b"- " * 20_000, gzip.compress(b"\0" * 400),
]  # fmt: skip


def build(root: Path) -> None:
    """A prepared set, a run with its evaluation, a study, predictions and a calibrator."""
    from helpers.runs import phantom, settings
    from helpers.softmax_files import write_labels, write_predictions
    from helpers.studies import ACDC, METHODS, Recipe, make_study
    from segcal.training import train

    phantom(root / "set", cases=8, slices=4, size=32)
    train(settings(root / "set", epochs=1), root / "run")
    make_study(root / "study", Recipe(METHODS[:2], (ACDC,), cases=3, shape=(3, 24, 24)))
    write_labels(root / "labels", 3)
    write_predictions(root / "nnunet", "nnunet", 3)
    write_predictions(root / "nifti", "nifti", 3)
    (root / "plan.yaml").write_text(
        "datasets: {toy: {}}\nmethods: {ce: {loss: ce}}\ntrain: {epochs: 1}\n"
    )
    call(root, "calibrate", "--probs", "nnunet", "--labels", "labels", "--out", "cal.json")
    call(root, "evaluate", "run")


# Command, and the files of which one is changed.
COMMANDS = [
    ("data check set", "set/*.* set/cases/*/*"),
    ("train --data set --out run --resume --set epochs=2", "run/*"),
    ("evaluate run --overwrite", "run/* set/*.* set/cases/*/*"),
    ("evaluate run", "run/evaluation.json run/cases.csv"),
    ("rank study/cases.csv --out out --missing worst", "study/cases.csv"),
    ("report study --out out", "study/*.* study/runs/**/*.*"),
    ("audit --probs nnunet --labels labels --out out", "nnunet/* labels/*"),
    ("audit --probs nifti --labels labels --out out", "nifti/*"),
    ("apply cal.json --probs nnunet --out out", "cal.json nnunet/*"),
    ("calibrate --probs nifti --labels labels --out out.json", "nifti/*"),
    ("benchmark plan.yaml --out out --data toy=set --dry-run", "plan.yaml"),
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Hostile content, flipped bits, a cut, or a doubled or removed part."""
    kind = rng.randrange(5)
    if kind == 0 or not data:
        return rng.choice(CONTENTS)
    changed = bytearray(data)
    if kind == 1:
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 2:
        return data[: rng.randrange(len(data))]
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:] if kind == 3 else data[:first] + data[last:]


def call(folder: Path, *arguments: str) -> tuple[str, str]:
    """How a command ended ("ok", "refused" or "failure"), and what it printed last."""
    import typer

    from segcal.cli import app

    printed, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            app(list(arguments), standalone_mode=False)
        return "ok", printed.getvalue()[-400:]
    except (typer.Exit, SystemExit) as stop:
        code = getattr(stop, "exit_code", getattr(stop, "code", 0))
        return ("refused" if code else "ok"), printed.getvalue()[-400:]
    except (ValueError, TypeError, OSError, ImportError) as error:  # printed as one line
        return "refused", f"{type(error).__name__}: {error}"
    except BaseException:
        return "failure", traceback.format_exc()
    finally:
        os.chdir(before)


def trial(world: Path, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    arguments, patterns = (text.split() for text in COMMANDS[seed % len(COMMANDS)])
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "world"
        shutil.copytree(world, copy)
        files = sorted(p for pattern in patterns for p in copy.glob(pattern) if p.is_file())
        victim = rng.choice(files)
        victim.write_bytes(mutate(victim.read_bytes(), rng))
        allowed = {"run", "out", "out.json", "study"}
        before = {p: p.stat().st_mtime_ns for p in copy.rglob("*") if p.is_file()}
        start = time.process_time()
        outcome, text = call(copy, *arguments)
        seconds = time.process_time() - start
        written = [
            str(p.relative_to(copy))
            for p in copy.rglob("*")
            if p.is_file()
            and before.get(p) != p.stat().st_mtime_ns
            and p.relative_to(copy).parts[0] not in allowed
        ]
    if seconds > SECONDS:
        outcome, text = "failure", f"took {seconds:.0f} s"
    if written:
        outcome, text = "failure", f"wrote {written}"
    name = str(victim.relative_to(copy))
    return {
        "seed": seed, "command": arguments[0], "file": name, "outcome": outcome,
        "seconds": seconds, "text": text,
    }  # fmt: skip


def run(trials: int, first: int = 0, say: Callable[[str], None] = print) -> list[dict[str, object]]:
    """All trials; failures are printed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        world = Path(temporary) / "world"
        world.mkdir()
        build(world)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        for seed in range(first, first + trials):
            results.append(trial(world, seed))
            if results[-1]["outcome"] == "failure":
                say(json.dumps(results[-1], indent=1))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    results = run(options.trials, options.first)
    if options.out is not None:
        options.out.write_text(json.dumps(results))
    counts = Counter((str(r["command"]), str(r["outcome"])) for r in results)
    for (command, outcome), number in sorted(counts.items()):
        print(f"{command:10} {outcome:8} {number}")
    print(f"longest: {max(float(str(r['seconds'])) for r in results):.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory: {peak:.2f} GiB")
    sys.exit(any(r["outcome"] == "failure" for r in results))


if __name__ == "__main__":
    main()
