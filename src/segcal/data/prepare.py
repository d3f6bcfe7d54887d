"""From a downloaded set to a prepared one.

Order of events: find the cases (nothing is written if that fails), write case after case, each
whole, then splits.json, then dataset.yaml, whose presence says that the set is complete. Run
again after an interruption, cases that are there and unchanged are kept.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import yaml

from segcal import __version__
from segcal._checks import check_number
from segcal.data.case import Case, CaseProperties
from segcal.data.dataset import DatasetInfo, PreparedDataset, open_dataset
from segcal.data.errors import DataError, DiskFullError, disk_errors
from segcal.data.plan import Plan, digest
from segcal.data.pool import run_jobs
from segcal.data.splits import find_duplicates, make_splits
from segcal.data.store import PARTIAL, read_properties, write_case, write_json, write_text


@dataclass(frozen=True)
class PrepareReport:
    """What was done: cases written now, cases kept from before, and what was left out and why."""

    dataset: PreparedDataset
    written: int
    kept: int
    skipped: tuple[DataError, ...]


def prepare(
    plan: Plan,
    out: Path | str,
    *,
    workers: int = 1,
    keep_going: bool = False,
    seed: int = 0,
    folds: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> PrepareReport:
    """Write a plan's cases, splits and description to `out`.

    The first bad case stops the run; with `keep_going` it is left out and listed. `progress` is
    called with (cases done, cases in all). More than one worker starts processes: call it from
    under `if __name__ == "__main__":` then.
    """
    check_number("workers", workers, low=1)
    if plan.problems and not keep_going:
        raise plan.problems[0]
    out = Path(out)
    cases_dir = out / "cases"
    with _claimed(out):
        kept = _kept_cases(plan, cases_dir)
        jobs = {
            name: partial(_make, maker, cases_dir, plan.dtype, plan.recipe_sha256)
            for name, maker in plan.makers.items()
            if name not in kept
        }
        stored, problems = dict(kept), list(plan.problems)
        total = len(plan.makers)
        # Closed at once when a bad case stops the run: no worker writes after the lock is gone.
        with closing(run_jobs(jobs, workers)) as outcomes:
            for name, outcome in outcomes:
                if isinstance(outcome, DataError):
                    if not keep_going or isinstance(outcome, DiskFullError):
                        raise outcome
                    problems.append(outcome)
                else:
                    stored[name] = outcome
                if progress is not None:
                    progress(len(stored) + len(problems) - len(plan.problems), total)
        if not stored:
            raise problems[0]
        _finish(plan, out, stored, problems, seed, folds)
    return PrepareReport(open_dataset(out), len(stored) - len(kept), len(kept), tuple(problems))


def _make(
    maker: Callable[[], Case], cases_dir: Path, dtype: str, recipe_sha256: str
) -> CaseProperties:
    return write_case(maker(), cases_dir, dtype, recipe_sha256)


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Make the folder, hold it against a second `prepare`, clear what an interrupted one left."""
    import fcntl

    with disk_errors(out):
        if out.is_dir() and not (out / "cases").is_dir():
            strangers = [p for p in out.iterdir() if p.name != ".lock"]
            if strangers:
                raise DataError(
                    out,
                    f"holds other files ({strangers[0].name})",
                    "choose an empty folder for --out",
                )
        (out / "cases").mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                out, "is being written by another `segcal prepare`", "wait or choose another --out"
            ) from error
        with disk_errors(out):
            for path in (*out.glob(f"{PARTIAL}*"), *(out / "cases").glob(f"{PARTIAL}*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def _kept_cases(plan: Plan, cases_dir: Path) -> dict[str, CaseProperties]:
    """Cases of an earlier run that are still right; one whose files changed is made anew."""
    kept = {}
    for folder in sorted(cases_dir.iterdir()):
        properties = read_properties(folder)
        if folder.name not in plan.makers or properties.recipe_sha256 != plan.recipe_sha256:
            raise DataError(
                folder,
                "was prepared from another source or with other settings",
                "choose another --out or delete that one",
            )
        if properties.sources == plan.sources[folder.name]:
            kept[folder.name] = properties
        else:
            # Away in one step, so that no half-deleted case can be met.
            gone = folder.with_name(f"{PARTIAL}{os.getpid()}-old-{folder.name}")
            with disk_errors(cases_dir):
                os.rename(folder, gone)
                shutil.rmtree(gone)
    if len(kept) < len(plan.makers):
        # The set is not complete until this run ends.
        (cases_dir.parent / "dataset.yaml").unlink(missing_ok=True)
    return kept


def _finish(
    plan: Plan,
    out: Path,
    stored: Mapping[str, CaseProperties],
    problems: list[DataError],
    seed: int,
    folds: int,
) -> None:
    cases = [stored[name] for name in sorted(stored)]
    duplicates = find_duplicates((c.patient, c.voxels_sha256) for c in cases)
    patient_of = {c.name: c.patient for c in cases}
    splits = make_splits(patient_of, duplicates, plan.counts, seed, folds)
    write_json(out / "splits.json", splits.model_dump(mode="json"))
    top = max(max(c.voxels) for c in cases)
    inferred = {0: "background"} | {v: f"class {v}" for v in range(1, max(top, 1) + 1)}
    info = DatasetInfo(
        name=plan.name,
        source=plan.source,
        recipe=plan.recipe,
        dtype="uint8" if plan.dtype == "uint8" else "float16",
        channels=plan.channels,
        classes=plan.classes or inferred,
        regions=plan.regions,
        grid=plan.grid,
        intensity=plan.intensity,
        has_truth=all("truth" in c.sha256 for c in cases),
        cases=tuple(patient_of),
        skipped=tuple(str(problem) for problem in problems),
        versions={"segcal": __version__}
        | {name: version(name) for name in ("numpy", "scipy", "nibabel", "blosc2")},
        fingerprint=fingerprint(cases, plan.classes or inferred, plan.recipe_sha256),
    )
    # JSON has only text for keys; YAML may keep the labels as numbers.
    content = info.model_dump(mode="json") | {"classes": dict(sorted(info.classes.items()))}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_text(out / "dataset.yaml", text)


def fingerprint(cases: list[CaseProperties], classes: Mapping[int, str], recipe_sha256: str) -> str:
    """One hash over all stored arrays, the classes and the settings."""
    arrays = sorted((c.name, c.patient, sorted(c.sha256.items())) for c in cases)
    return digest([arrays, sorted(classes.items()), recipe_sha256])
