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

import numpy as np
import yaml
from numpy.typing import NDArray

from segcal import __version__
from segcal.core.checks import check_choice, check_int
from segcal.core.errors import PARTIAL, DiskFullError, PathError, list_folder, write_errors
from segcal.core.files import remove, write_folder, write_json, write_text
from segcal.core.jobs import run_jobs
from segcal.core.locks import folder_lock
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data.case import Case, CaseProperties, SourceFile, majority
from segcal.data.case_tables import read_groups
from segcal.data.dataset import PreparedDataset, open_dataset
from segcal.data.formats import read_labels
from segcal.data.grid import IGNORED
from segcal.data.info import DatasetInfo, Dtype, Recipe
from segcal.data.resample import present
from segcal.data.sources.base import Source, SourceCase
from segcal.data.splits import (
    GivenParts,
    Splits,
    find_duplicates,
    make_splits,
    read_given_parts,
    read_splits,
)
from segcal.data.store import DTYPES, pack_case, read_properties
from segcal.data.summary import report_lines
from segcal.data.survey import auto_workers, check_labels, describe, find_cases

# Increased whenever the same files and settings would give other arrays than before.
FORMAT = 2
# MR rarely has such values; CT has them in every scan with air.
_LOWEST_MR = -200.0


@dataclass(frozen=True)
class PrepareReport:
    """The prepared set, the numbers of new and of kept cases, and the skipped cases.

    `edited` is True if splits.json was edited by hand, and therefore kept.
    """

    dataset: PreparedDataset
    cases: tuple[CaseProperties, ...]
    written: int
    kept: int
    skipped: tuple[PathError, ...]
    knows_patients: bool = True
    edited: bool = False

    def lines(self) -> list[str]:
        """The content of the set, line by line, and warnings."""
        lines = report_lines(self.dataset, self.cases, self.knows_patients)
        if self.kept:
            lines.append(f"{self.kept} unchanged cases were kept, {self.written} written")
        if self.edited:
            path = self.dataset.root / "splits.json"
            lines.append(f"{path} was edited by hand and is kept; remove it to split again")
        return lines


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
    splits: Path | None = None,
    all_test: bool = False,
    group: str | None = None,
    leave_out_group: str | None = None,
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
        splits: a file with the parts, see `segcal.data.splits.read_given_parts`.
        all_test: put every case into the test part.
        group: CSV file (and `:COLUMN`) with the group of each case or patient.
        leave_out_group: the group that becomes the test part.
    """
    check_int("workers", workers, low=0)
    check_choice("dtype", dtype, DTYPES)
    cases, files, problems = find_cases(source)
    if problems and not keep_going:
        raise problems[0]
    patient_of = {name: case.patient for name, case in cases.items()}
    if group is not None:
        groups = read_groups(group, patient_of)
        cases = {name: replace(case, group=groups[name]) for name, case in cases.items()}
    given = _given_parts(cases, patient_of, splits, all_test, leave_out_group)
    # Errors in given parts are found before anything is written.
    make_splits(patient_of, (), source.description.split_counts, seed, folds, given)
    if source.check_labels:
        check_labels(source, cases.values())
    info = describe(source, cases.values(), recipe, dtype)
    settings = {"format": str(FORMAT), "source": source.name, "dtype": dtype}
    settings |= source.settings(info)
    out = Path(out)
    _check_apart(out, source.folder)
    with _claimed(out):
        kept = _kept_cases(out, cases, files, settings)
        store = partial(_store_case, info=info, settings=settings, out=out, ask=source.ask_modality)
        jobs = {
            name: partial(store, case, files[name])
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
        done = [stored[name] for name in sorted(stored)]
        duplicates = find_duplicates((c.patient, c.voxels_sha256) for c in done)
        patient_of = {c.name: c.patient for c in done}
        parts = make_splits(patient_of, duplicates, info.split_counts, seed, folds, given)
        edited = _write_splits(out / "splits.json", parts, given is not None and given.by_user)
        _write_description(info, out, done, problems)
    return PrepareReport(
        open_dataset(out), tuple(done), len(done) - len(kept), len(kept), tuple(problems),
        source.knows_patients, edited,
    )  # fmt: skip


def _given_parts(
    cases: Mapping[str, SourceCase],
    patient_of: Mapping[str, str],
    splits: Path | None,
    all_test: bool,
    leave_out_group: str | None,
) -> GivenParts | None:
    """The parts that the user or the folders of the data set decide."""
    if sum((splits is not None, all_test, leave_out_group is not None)) > 1:
        raise ValueError("Expected only one of --splits, --all-test and --leave-out-group.")
    if splits is not None:
        return read_given_parts(splits, patient_of)
    if all_test:
        return GivenParts({"test": list(cases)})
    if leave_out_group is not None:
        groups = sorted({case.group for case in cases.values() if case.group})
        if leave_out_group not in groups:
            listed = ", ".join(groups) or "the groups in --group FILE"
            raise ValueError(
                f"Expected argument `leave_out_group` to be one of {listed}, but got "
                f"{leave_out_group!r}."
            )
        left_out = [n for n, c in cases.items() if c.group == leave_out_group]
        return GivenParts({"test": left_out})
    test = [name for name, case in cases.items() if case.part == "test"]
    return GivenParts({"test": test}, by_user=False) if test else None


def _store_case(
    source: SourceCase,
    files: tuple[SourceFile, ...],
    *,
    info: DatasetInfo,
    settings: Mapping[str, str],
    out: Path,
    ask: bool,
) -> CaseProperties:
    case = load_case(source, info)
    if ask:
        _ask_modality(case, source)
    case = replace(case, sources=files)
    properties, arrays = pack_case(case, info.dtype, settings)
    # A complete set stays complete until its first case is replaced; earlier errors leave it so.
    with write_errors(out):
        (out / "dataset.yaml").unlink(missing_ok=True)
    write_folder(out / "cases" / properties.name, arrays)
    return properties


def _ask_modality(case: Case, source: SourceCase) -> None:
    """Raise if the values of the file look like CT."""
    lowest = min(
        float(channel.min()) * record.divisor + record.shift
        for channel, record in zip(case.image, case.intensity, strict=True)
    )
    if lowest < _LOWEST_MR:
        path = source.files[0] if source.files else Path(case.name)
        remedy = "add --modality ct, or --modality mr to z-score the images"
        raise PathError(path, f"holds values down to {lowest:.0f}, as in CT", remedy)


def load_case(source: SourceCase, info: DatasetInfo) -> Case:
    """Read a case as `info` describes; voxels that do not count are IGNORED."""
    case = source.load(info)
    raters = {name: _ignore_unknown(drawn, case, source) for name, drawn in case.raters.items()}
    label = majority(raters.values()) if raters else _ignore_unknown(case.label, case, source)
    return replace(case, label=label, raters=raters, group=source.group, annotated=source.annotated)


def _ignore_unknown(label: NDArray[np.uint8], case: Case, source: SourceCase) -> NDArray[np.uint8]:
    """The label with IGNORED outside the mask, and for background if classes are missing in it."""
    if source.mask is not None:
        mask, header = read_labels(source.mask)
        if header.shape != case.grid.original_shape:
            problem = f"has shape {header.shape}, its image {case.grid.original_shape}"
            raise PathError(source.mask, problem, "give a mask on the grid of the image")
        inside = case.grid.apply_labels((mask != 0).astype(np.uint8)) == 1
        label = np.where(inside, label, np.uint8(IGNORED))
    if source.annotated is not None:
        others = set(present(label)) - {0, IGNORED, *source.annotated}
        if others:
            path = source.files[-1] if source.files else Path(case.name)
            problem = f"holds label {min(others)}, which --annotated does not list for it"
            raise PathError(path, problem, "correct the table")
        label = np.where(label == 0, np.uint8(IGNORED), label)
    return label


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
    out: Path,
    cases: Mapping[str, SourceCase],
    files: Mapping[str, tuple[SourceFile, ...]],
    settings: Mapping[str, str],
) -> dict[str, CaseProperties]:
    """The cases of an earlier run that are still valid; the others are prepared again.

    Cases of a finished set with other settings are refused.
    """
    kept = {}
    finished = (out / "dataset.yaml").is_file()
    for folder in list_folder(out / "cases"):
        problem = "" if folder.name in files else "is a case that the source does not have"
        properties = read_properties(folder)
        for key in sorted(settings.keys() | properties.settings.keys()):
            before, now = (s.get(key, "none") for s in (properties.settings, settings))
            if before != now and not problem and finished:
                problem = f"was prepared with another {key} ({before}, now {now})"
        if problem:
            raise PathError(folder, problem, "choose another --out")
        arrays = [folder / f"{name}.b2nd" for name in properties.sha256]
        case = cases[folder.name]
        facts = (properties.patient, properties.group, properties.annotated, properties.sources)
        if (
            all(path.is_file() and path.stat().st_size > 0 for path in arrays)
            and facts == (case.patient, case.group, case.annotated, files[folder.name])
            and properties.settings == settings
        ):
            kept[folder.name] = properties
    return kept


def _write_splits(path: Path, new: Splits, requested: bool) -> bool:
    """Write splits.json unless it was edited, and return whether it was.

    An edited file is kept; a PathError if other parts were `requested`.
    """
    existing = read_splits(path) if path.exists() else new
    edited = existing.edited and existing.sha256() != new.sha256()
    if edited and requested:
        problem = "was edited or written with other options, and differs from the parts requested"
        raise PathError(path, problem, "remove it to replace it")
    chosen = existing.model_copy(update={"duplicates": new.duplicates}) if edited else new
    write_json(path, chosen.model_dump(mode="json"))
    return edited


def _write_description(
    info: DatasetInfo, out: Path, cases: Sequence[CaseProperties], problems: Sequence[PathError]
) -> None:
    """Write dataset.yaml."""
    counted = [labels for c in cases for labels in (c.voxels, *c.readers.values())]
    top = max(1, *(max(labels, default=0) for labels in counted))
    numbered = {0: "background"} | {v: f"class {v}" for v in range(1, top + 1)}
    packages = ("numpy", "scipy", "nibabel", "blosc2")
    info = info.model_copy(
        update={
            "classes": info.classes or numbered,
            "has_truth": all("truth" in c.sha256 for c in cases),
            "cases": tuple(c.name for c in cases),
            "skipped": tuple(str(problem) for problem in problems),
            "versions": {"segcal": __version__} | {name: version(name) for name in packages},
        }
    )
    info = info.model_copy(update={"fingerprint": fingerprint(cases, info)})
    text = yaml.safe_dump(info.model_dump(), sort_keys=False, allow_unicode=True)
    write_text(out / "dataset.yaml", text)


def fingerprint(cases: Iterable[CaseProperties], info: DatasetInfo) -> str:
    """One hash over everything stored of the cases and everything that gives it its meaning.

    Not covered: groups, the times of the source files, the name of the set, versions, skipped
    cases.
    """
    stored = []
    for case in sorted(cases, key=lambda c: c.name):
        content = case.model_dump(mode="json", exclude=None if case.readers else {"readers"})
        for source in content["sources"]:
            del source["mtime_ns"]
        # A group decides only how results are listed.
        del content["group"]
        if content["annotated"] is None:
            del content["annotated"]
        stored.append(content)
    text = json.dumps([stored, info.meaning()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
