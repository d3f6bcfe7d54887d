"""From a downloaded set to a prepared one.

Order of events: find the cases (nothing is written if that fails), write case after case, each
whole, then splits.json, then dataset.yaml, whose presence says that the set is complete. Run
again after an interruption, cases that are there and unchanged are kept.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import yaml

from segcal import __version__
from segcal.core.checks import check_int
from segcal.core.errors import DiskFullError, PathError, write_errors
from segcal.core.files import PARTIAL, remove, write_folder, write_json, write_text
from segcal.core.locks import folder_lock
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data._workers import run_jobs
from segcal.data.case import Case, CaseProperties
from segcal.data.dataset import DatasetInfo, PreparedDataset, open_dataset
from segcal.data.prepare_plan import Plan
from segcal.data.splits import check_folds, find_duplicates, make_splits
from segcal.data.store import pack_case, read_properties


@dataclass(frozen=True)
class PrepareReport:
    """What was done: cases written now, cases kept from before, and what was left out and why."""

    dataset: PreparedDataset
    written: int
    kept: int
    skipped: tuple[PathError, ...]


def prepare(
    plan: Plan,
    out: Path | str,
    *,
    workers: int = 1,
    keep_going: bool = False,
    seed: int = 0,
    folds: int = 5,
    progress: ProgressCallback = no_progress,
) -> PrepareReport:
    """Write a plan's cases, splits and description to `out`.

    The first bad case stops the run; with `keep_going` it is left out and listed. `progress` is
    called with (cases done, cases in all). More than one worker starts processes: call it from
    under `if __name__ == "__main__":` then.
    """
    check_int("workers", workers, low=1)
    check_int("seed", seed, low=0)
    check_folds(folds)
    if plan.problems and not keep_going:
        raise plan.problems[0]
    out = Path(out)
    cases_dir = out / "cases"
    _check_apart(out, plan.root)
    with _claimed(out):
        kept = _kept_cases(plan, cases_dir)
        jobs = {
            name: partial(_make, maker, out, plan.dtype, plan.settings)
            for name, maker in plan.makers.items()
            if name not in kept
        }
        stored, problems = dict(kept), list(plan.problems)
        total = len(plan.makers)
        # Closed at once when a bad case stops the run: no worker writes after the lock is gone.
        with closing(run_jobs(jobs, workers)) as outcomes:
            for name, outcome in outcomes:
                if isinstance(outcome, PathError):
                    if not keep_going or isinstance(outcome, DiskFullError):
                        raise outcome
                    problems.append(outcome)
                else:
                    stored[name] = outcome
                progress("preparing", len(stored) + len(problems) - len(plan.problems), total)
        if not stored:
            raise problems[0]
        _finish(plan, out, stored, problems, seed, folds)
    return PrepareReport(open_dataset(out), len(stored) - len(kept), len(kept), tuple(problems))


def _make(
    maker: Callable[[], Case], out: Path, dtype: str, settings: Mapping[str, str]
) -> CaseProperties:
    properties, files = pack_case(maker(), dtype, settings)
    # Only now, when a case is about to change, is the set no longer the one it was; whatever
    # fails before leaves a finished set finished.
    with write_errors(out):
        (out / "dataset.yaml").unlink(missing_ok=True)
    write_folder(out / "cases" / properties.name, files)
    return properties


def _check_apart(out: Path, source: Path | None) -> None:
    """Neither may lie in the other: a later search of the source would find what was written."""
    if source is None:
        return
    here, there = out.resolve(), source.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        how = "lies inside" if here.is_relative_to(there) else "holds"
        raise PathError(out, f"{how} the source folder {source}", "choose another --out")


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Make the folder, hold it against a second `prepare`, clear what an interrupted one left."""
    with write_errors(out):
        if out.is_dir():
            _check_own(out)
        (out / "cases").mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        for path in (*out.glob(f"{PARTIAL}*"), *(out / "cases").glob(f"{PARTIAL}*")):
            remove(path)
        yield


def _check_own(out: Path) -> None:
    """Refuse a folder with foreign content. A picture beside a set of our own does no harm."""
    cases = _visible(out / "cases") if (out / "cases").is_dir() else []
    strangers = [p for p in cases if not (p / "case.json").is_file()]
    if not cases and not (out / "dataset.yaml").is_file():
        strangers += [p for p in _visible(out) if p.name not in ("cases", "splits.json")]
    if strangers:
        name = strangers[0].relative_to(out)
        raise PathError(out, f"holds other files ({name})", "choose an empty folder for --out")


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def _kept_cases(plan: Plan, cases_dir: Path) -> dict[str, CaseProperties]:
    """Cases of an earlier run that are still right; the others are replaced when they are made."""
    kept = {}
    for folder in _visible(cases_dir):
        if folder.name not in plan.makers:
            raise PathError(
                folder, "is a case that the source does not have", "choose another --out"
            )
        properties = read_properties(folder)
        for field in sorted(plan.settings.keys() | properties.settings.keys()):
            before, now = (s.get(field, "none") for s in (properties.settings, plan.settings))
            if before != now:
                raise PathError(
                    folder,
                    f"was prepared with another {field} ({before}, now {now})",
                    "choose another --out",
                )
        arrays = [folder / f"{name}.b2nd" for name in properties.sha256]
        whole = all(path.is_file() and path.stat().st_size > 0 for path in arrays)
        if whole and properties.sources == plan.sources[folder.name]:
            kept[folder.name] = properties
    return kept


def _finish(
    plan: Plan,
    out: Path,
    stored: Mapping[str, CaseProperties],
    problems: list[PathError],
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
        fingerprint="",
    )
    info = info.model_copy(update={"fingerprint": fingerprint(cases, info)})
    # JSON has only text for keys; YAML may keep the labels as numbers.
    content = info.model_dump(mode="json") | {"classes": dict(sorted(info.classes.items()))}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_text(out / "dataset.yaml", text)


def fingerprint(cases: Iterable[CaseProperties], info: DatasetInfo) -> str:
    """One hash over everything stored of the cases and everything that says what it means.

    Not part of it: the time of the source files, the set's name, versions, and what was left out.
    """
    stored = []
    for case in sorted(cases, key=lambda c: c.name):
        content = case.model_dump(mode="json")
        for source in content["sources"]:
            del source["mtime_ns"]
        stored.append(content)
    meaning = info.model_dump(
        mode="json", exclude={"name", "cases", "skipped", "versions", "fingerprint"}
    )
    text = json.dumps([stored, meaning], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
