"""From a downloaded data set to a prepared one.

First the cases are found; nothing is written if that fails. Then each case is written as a whole,
then splits.json, then dataset.yaml, whose presence means that the set is complete. When the
command is run again, unchanged cases are kept.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import yaml

from segcal import __version__
from segcal.core.checks import check_choice, check_int
from segcal.core.errors import DiskFullError, PathError, list_folder, write_errors
from segcal.core.files import PARTIAL, remove, write_folder, write_json, write_text
from segcal.core.jobs import run_jobs
from segcal.core.locks import folder_lock
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data.case import CaseProperties, SourceFile
from segcal.data.dataset import PreparedDataset, open_dataset
from segcal.data.info import DatasetInfo, Dtype, Recipe
from segcal.data.sources.base import Source, SourceCase
from segcal.data.splits import PARTS, check_folds, find_duplicates, make_splits
from segcal.data.store import DTYPES, pack_case, read_properties
from segcal.data.survey import auto_workers, describe, find_cases

# Increased whenever the same files and settings would give other arrays than before.
FORMAT = 2


@dataclass(frozen=True)
class PrepareReport:
    """The prepared set, the numbers of new and of kept cases, and the skipped cases."""

    dataset: PreparedDataset
    written: int
    kept: int
    patients: int
    skipped: tuple[PathError, ...]

    def summary(self, knows_patients: bool = True) -> str:
        """Cases, patients, splits, channels and normalization in one line."""
        info, splits = self.dataset.info, self.dataset.splits
        note = "" if knows_patients else " (each case counts as one patient)"
        parts = ", ".join(f"{len(getattr(splits, part))} {part}" for part in PARTS)
        return (
            f"{len(self.dataset)} cases, {self.patients} patients{note}: {parts}; "
            f"{', '.join(info.channels)}, {info.intensity}"
        )


def prepare(
    source: Source,
    out: Path | str,
    *,
    recipe: Recipe | None = None,
    dtype: Dtype = "float16",
    workers: int = 1,
    keep_going: bool = False,
    seed: int = 0,
    folds: int = 5,
    progress: ProgressCallback = no_progress,
) -> PrepareReport:
    """Write the cases, splits and description of a data set to `out`.

    Args:
        source: such as `AcdcSource("ACDC/training")`.
        out: the folder to write; it must not lie in the source folder, nor the source in it.
        recipe: `paper` (the sizes of the NACL paper), `padded` (slices padded to one size, for
            data sets without a size in the paper) or `native` (the original grid); the first one
            that the source offers by default.
        dtype: how images are stored.
        workers: processes; 0: as many as cores and memory allow, at most 8. More than one starts
            new processes, which needs `if __name__ == "__main__":` in a script.
        keep_going: skip invalid cases and list them, instead of stopping at the first.
        seed, folds: of the splits.
    """
    check_int("workers", workers, low=0)
    check_int("seed", seed, low=0)
    check_folds(folds)
    check_choice("dtype", dtype, DTYPES)
    cases, files, problems = find_cases(source)
    if problems and not keep_going:
        raise problems[0]
    info = describe(source, cases.values(), recipe, dtype)
    settings = {"format": str(FORMAT), "source": source.name, "dtype": dtype}
    settings |= source.settings(info)
    out = Path(out)
    _check_apart(out, source.folder)
    with _claimed(out):
        kept = _kept_cases(out / "cases", files, settings)
        jobs = {
            name: partial(_store_case, case, files[name], info, settings, out)
            for name, case in cases.items()
            if name not in kept
        }
        stored, total = dict(kept), len(cases) + len(problems)
        # Closed as soon as an invalid case stops the run: no worker writes without the lock.
        with closing(run_jobs(jobs, workers or auto_workers(cases.values(), info))) as outcomes:
            for name, outcome in outcomes:
                if isinstance(outcome, PathError):
                    if not keep_going or isinstance(outcome, DiskFullError):
                        raise outcome
                    problems.append(outcome)
                else:
                    stored[name] = outcome
                progress("preparing", len(stored) + len(problems), total)
        if not stored:
            raise problems[0]
        _finish(info, out, [stored[name] for name in sorted(stored)], problems, seed, folds)
    patients = len({properties.patient for properties in stored.values()})
    return PrepareReport(
        open_dataset(out), len(stored) - len(kept), len(kept), patients, tuple(problems)
    )


def _store_case(
    case: SourceCase,
    files: tuple[SourceFile, ...],
    info: DatasetInfo,
    settings: Mapping[str, str],
    out: Path,
) -> CaseProperties:
    properties, arrays = pack_case(replace(case.load(info), sources=files), info.dtype, settings)
    # A complete set stays complete until its first case is replaced; earlier errors leave it so.
    with write_errors(out):
        (out / "dataset.yaml").unlink(missing_ok=True)
    write_folder(out / "cases" / properties.name, arrays)
    return properties


def _check_apart(out: Path, source: Path | None) -> None:
    """Neither may lie in the other: the next search of the source would find the output."""
    if source is None:
        return
    output, origin = out.resolve(), source.resolve()
    if output.is_relative_to(origin) or origin.is_relative_to(output):
        how = "lies inside" if output.is_relative_to(origin) else "contains"
        raise PathError(out, f"{how} the source folder {source}", "choose another --out")


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Make and lock the folder, and remove what an interrupted run left."""
    with write_errors(out):
        if out.is_dir():
            _check_own(out)
        (out / "cases").mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        for path in (*out.glob(f"{PARTIAL}*"), *(out / "cases").glob(f"{PARTIAL}*")):
            remove(path)
        yield


def _check_own(out: Path) -> None:
    """Refuse a folder with other content. A picture beside a prepared set is allowed."""
    cases = list_folder(out / "cases") if (out / "cases").is_dir() else []
    others = [p for p in cases if not (p / "case.json").is_file()]
    if not cases and not (out / "dataset.yaml").is_file():
        others += [p for p in list_folder(out) if p.name not in ("cases", "splits.json")]
    if others:
        name = others[0].relative_to(out).as_posix()
        raise PathError(out, f"holds other files ({name})", "choose an empty folder for --out")


def _kept_cases(
    cases_dir: Path, files: Mapping[str, tuple[SourceFile, ...]], settings: Mapping[str, str]
) -> dict[str, CaseProperties]:
    """The cases of an earlier run that are still valid; the others are prepared again."""
    kept = {}
    for folder in list_folder(cases_dir):
        problem = "" if folder.name in files else "is a case that the source does not have"
        properties = read_properties(folder)
        for key in sorted(settings.keys() | properties.settings.keys()):
            before, now = (s.get(key, "none") for s in (properties.settings, settings))
            if before != now and not problem:
                problem = f"was prepared with another {key} ({before}, now {now})"
        if problem:
            raise PathError(folder, problem, "choose another --out")
        arrays = [folder / f"{name}.b2nd" for name in properties.sha256]
        complete = all(path.is_file() and path.stat().st_size > 0 for path in arrays)
        if complete and properties.sources == files[folder.name]:
            kept[folder.name] = properties
    return kept


def _finish(
    info: DatasetInfo,
    out: Path,
    cases: Sequence[CaseProperties],
    problems: Sequence[PathError],
    seed: int,
    folds: int,
) -> None:
    """Write splits.json, then dataset.yaml."""
    duplicates = find_duplicates((c.patient, c.voxels_sha256) for c in cases)
    patient_of = {c.name: c.patient for c in cases}
    splits = make_splits(patient_of, duplicates, info.split_counts, seed, folds)
    write_json(out / "splits.json", splits.model_dump(mode="json"))
    top = max(1, *(max(c.voxels) for c in cases))
    numbered = {0: "background"} | {v: f"class {v}" for v in range(1, top + 1)}
    packages = ("numpy", "scipy", "nibabel", "blosc2")
    info = info.model_copy(
        update={
            "classes": info.classes or numbered,
            "has_truth": all("truth" in c.sha256 for c in cases),
            "cases": tuple(patient_of),
            "skipped": tuple(str(problem) for problem in problems),
            "versions": {"segcal": __version__} | {name: version(name) for name in packages},
        }
    )
    info = info.model_copy(update={"fingerprint": fingerprint(cases, info)})
    text = yaml.safe_dump(info.model_dump(), sort_keys=False, allow_unicode=True)
    write_text(out / "dataset.yaml", text)


def fingerprint(cases: Iterable[CaseProperties], info: DatasetInfo) -> str:
    """One hash over everything stored of the cases and everything that gives it its meaning.

    Not covered: the times of the source files, the name of the set, versions, skipped cases.
    """
    stored = []
    for case in sorted(cases, key=lambda c: c.name):
        content = case.model_dump(mode="json")
        for source in content["sources"]:
            del source["mtime_ns"]
        stored.append(content)
    text = json.dumps([stored, info.meaning()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
