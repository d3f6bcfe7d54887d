"""Run commands on files of which one is damaged or hostile, and classify how they end.

python tests/robustness/hostile.py --trials 2000 [--first 0] [--out results.json]

Each trial copies a small working example, changes one file and runs one command in a fork of this
process. Allowed are success and one line that names a problem. A traceback, 30 s of computing,
2 GiB of memory, an executed payload, or a file written outside the output folder is a failure.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from mutations import CANARY, mutate
from trials import built_world, limit_memory, run_command
from world import FORMATS

SECONDS, WALL_SECONDS = 30, 150
BYTES = 2 * 2**30
ADDRESS_SPACE = 8 * 2**30  # protects the machine; torch alone reserves several GB
# Command; the files of which one is changed; the files and folders that it may write.
COMMANDS = [
    ("data check set", "set/*.* set/cases/*/*", ""),
    ("data check set --figure out.png", "set/cases/*/*", "out.png"),
    ("train --config config.yaml --out out --set epochs=1", "config.yaml", "out"),
    ("train --data set --out run --resume --set epochs=2", "run/*", "run"),
    ("train --config config.yaml --out out --epochs 1", "set/*.* set/cases/*/*", "out"),
    ("evaluate run --overwrite", "run/* set/*.* set/cases/*/*", "run"),
    ("evaluate run", "run/evaluation.json run/cases.csv", "run"),
    ("evaluate run --data other", "other/*.* other/cases/*/*", "run"),
    ("evaluate run --calibrator cal.json --overwrite", "cal.json", "run"),
    ("rank study/cases.csv --out out --missing worst", "study/cases.csv", "out"),
    ("report study --out out", "study/*.* study/runs/**/*.*", "out"),
    ("audit --probs nnunet --labels labels --out out", "nnunet/* labels/*", "out"),
    ("apply cal.json --probs nnunet --out out", "cal.json nnunet/*", "out"),
    ("apply cal.json --probs npy --out out", "npy/*", "out"),
    ("apply cal.json --probs nifti --out out", "nifti/*", "out"),
    ("nnunet apply cal.json --predictions nnunet --out out", "cal.json nnunet/*", "out"),
    ("calibrate --probs nnunet --labels labels --out out.json", "nnunet/* labels/*", "out.json"),
    ("calibrate --probs nifti --labels labels --out out.json", "nifti/*", "out.json"),
    ("calibrate run --folds 0 --out out.json", "run/*.* set/cases/*/*", "out.json"),
    ("assure fit --probs fit --labels fit_labels --out out.json", "fit/*", "out.json"),
    ("assure apply assurance.json --probs nnunet --out out", "assurance.json nnunet/*", "out"),
    ("assure check assurance.json --probs nnunet --labels labels --out out",
     "assurance.json labels/*", "out"),
    ("assure apply assurance.json --probs nnunet --out out --masks dice", "assurance.json", "out"),
    ("predict run --input scans/nii.gz/images --out out", "run/*.* scans/nii.gz/images/*", "out"),
    ("predict run --input scans/nii.gz/images --out predicted --output labels",
     "predicted/predict.json", "predicted"),
    ("benchmark plan.yaml --out out --data toy=set --dry-run", "plan.yaml set/*.*", "out"),
    ("prepare folder --source scans/nii.gz --out out --workers 1 --splits parts.csv",
     "parts.csv", "out"),
    ("prepare folder --source scans/nii.gz --out out --workers 1 --splits large/splits.json",
     "large/splits.json", "out"),
    ("prepare folder --source scans/nii.gz --out out --workers 1 --group groups.csv "
     "--leave-out-group a", "groups.csv", "out"),
    *(
        (f"prepare folder --source scans/{form} --out out --workers 1", f"scans/{form}/**/*", "out")
        for form in (name.replace(" ", "_") for name in FORMATS)
    ),
    *(
        (f"predict run --input scans/{form}/images --out out --output labels",
         f"scans/{form}/images/**/*", "out")
        for form in (name.replace(" ", "_") for name in FORMATS)
    ),
]  # fmt: skip


def copy_needed(world: Path, copy: Path, text: str) -> None:
    """Copy the files and folders that a command and the patterns of its files name."""
    parts = [Path(word.split("=")[-1]).parts for word in text.split()]
    names = {Path(*part[: 2 if part[0] == "scans" else 1]) for part in parts}
    if any(name.name in ("run", "config.yaml") for name in names):
        names.add(Path("set"))
    for name in names:
        if (world / name).is_dir():
            shutil.copytree(world / name, copy / name)
        elif (world / name).is_file():
            copy.mkdir(exist_ok=True)
            shutil.copy2(world / name, copy / name)


def trial(world: Path, seed: int) -> dict[str, object]:
    """Change one file by chance, run one command, and judge."""
    rng = random.Random(seed)
    command, patterns, outputs = COMMANDS[seed % len(COMMANDS)]
    with tempfile.TemporaryDirectory(prefix="segcal-trial-") as temporary:
        root = Path(temporary)
        copy = root / "world"
        copy_needed(world, copy, f"{command} {patterns}")
        files = {p for pattern in patterns.split() for p in copy.glob(pattern) if p.is_file()}
        victim = rng.choice(sorted(files))
        victim.write_bytes(mutate(victim, victim.read_bytes(), rng))
        before = {p: p.stat().st_mtime_ns for p in copy.rglob("*") if p.is_file()}

        ended, text = run_command(
            copy, command.split(), lambda: limit_memory(ADDRESS_SPACE), WALL_SECONDS
        )
        outcome = {0: "ok", 1: "ok", 2: "refused"}.get(ended.code, "failure")
        lines = [line.partition(": ") for line in text.splitlines()]
        named = any(a in ("segcal", "skipped", "warning") and ": " in c for a, _, c in lines)
        if "Traceback" in text or (outcome == "refused" and not named):
            outcome = "failure"
        text = text[-1500:] if outcome == "failure" else text[-200:]
        written = [
            str(p.relative_to(root))
            for p in root.rglob("*")
            if p.is_file()
            and before.get(p) != p.stat().st_mtime_ns
            and p not in (root / "printed", victim)
            and p.name != ".verified.json"
            and p.relative_to(root).parts[1] not in outputs.split()
        ]
        problems = [
            *([f"executed {CANARY}"] if list(root.rglob(CANARY)) else []),
            *([f"wrote {written}"] if written else []),
            *([f"computed {ended.cpu_seconds:.0f} s"] if ended.cpu_seconds > SECONDS else []),
            *([f"needed {ended.peak_bytes >> 20} MiB"] if ended.peak_bytes > BYTES else []),
            *([f"ended with {ended.code}"] if ended.code not in (0, 1, 2) else []),
        ]
    if problems:
        outcome, text = "failure", f"{'; '.join(problems)}; {text}"
    return {
        "seed": seed, "command": command, "file": str(victim.relative_to(copy)), "text": text,
        "outcome": outcome, "seconds": ended.cpu_seconds, "peak_mib": ended.peak_bytes >> 20,
    }  # fmt: skip


def run(
    trials: int, first: int = 0, out: Path | None = None, existing: Path | None = None
) -> list[dict[str, object]]:
    """All trials; failures are printed."""
    results = []
    with built_world(existing) as world:
        for seed in range(first, first + trials):
            results.append(trial(world, seed))
            if results[-1]["outcome"] == "failure":
                print(json.dumps(results[-1], indent=1), flush=True)
            if out is not None:
                out.write_text(json.dumps(results))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--world", type=Path, help="a folder that world.build made")
    options = parser.parse_args()
    results = run(options.trials, options.first, options.out, options.world)
    counts = Counter((Path(str(r["file"])).suffix, str(r["outcome"])) for r in results)
    for (ending, outcome), number in sorted(counts.items()):
        print(f"{ending:8} {outcome:8} {number}")
    print(f"longest: {max(float(str(r['seconds'])) for r in results):.1f} s of computing")
    print(f"peak memory: {max(int(str(r['peak_mib'])) for r in results)} MiB")
    failures = sum(r["outcome"] == "failure" for r in results)
    print(f"{len(results)} trials, {failures} failures")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
