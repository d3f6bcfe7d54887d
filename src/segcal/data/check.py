"""`segcal data check`: verify a prepared set and summarize it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from segcal.core.errors import PathError, list_folder
from segcal.core.text import count
from segcal.data.case import CaseProperties
from segcal.data.dataset import PreparedCase, PreparedDataset, open_dataset
from segcal.data.preparation import fingerprint
from segcal.data.splits import PARTS, Splits, find_duplicates, leaks
from segcal.data.store import REBUILD
from segcal.data.summary import (
    axis_ranges,
    ignored_share,
    mixed_orientations,
    orientation,
    spacing_text,
)
from segcal.data.verify import verify_array


@dataclass(frozen=True)
class CheckReport:
    """`problems` is empty for a valid set; `summary` is a list of (title, value) to show."""

    problems: tuple[str, ...]
    summary: tuple[tuple[str, str], ...]
    cases: tuple[CaseProperties, ...] = field(repr=False, default=())


def find_copies(reports: Mapping[Path, CheckReport]) -> list[str]:
    """One line for each scan of a set that is voxel-identical to one of an earlier set."""
    first: dict[str, tuple[Path, str]] = {}
    lines = []
    for folder, report in reports.items():
        for case in report.cases:
            other, name = first.get(case.voxels_sha256, (folder, ""))
            if other != folder:
                lines.append(f"{folder}: {case.name} is the same scan as {name} of {other}")
        for case in report.cases:
            first.setdefault(case.voxels_sha256, (folder, case.name))
    return lines


def check_dataset(folder: Path | str) -> CheckReport:
    """Read everything once and check hashes, shapes, labels, splits and leaks."""
    dataset = open_dataset(folder)
    problems: list[str] = []
    valid: list[CaseProperties] = []
    for case in dataset:
        found = _check_case(case, dataset)
        problems += found
        if not found:
            valid.append(case.properties)
    folders = {path.name for path in list_folder(dataset.root / "cases")}
    problems += [
        f"{dataset.root / 'cases' / name}: is not listed in dataset.yaml; remove it"
        for name in sorted(folders - set(dataset.info.cases))
    ]
    if len(valid) == len(dataset) and fingerprint(valid, dataset.info) != dataset.fingerprint:
        problems.append(
            f"{dataset.root / 'dataset.yaml'}: the fingerprint does not match, so it or a "
            "case.json was changed; prepare the set again"
        )
    problems += _check_splits(dataset, valid)
    return CheckReport(tuple(problems), tuple(_summary(dataset, valid)), tuple(valid))


def _check_case(case: PreparedCase, dataset: PreparedDataset) -> list[str]:
    """Whether the arrays are those that case.json describes; the fingerprint covers case.json."""
    try:
        properties = case.properties
        readers = len(properties.readers)
        first_axis = {"image": properties.channels, "truth": dataset.num_classes, "raters": readers}
        for name in properties.sha256:
            expected = (*filter(None, [first_axis.get(name)]), *properties.shape)
            # Before any voxel is read: a damaged shape may need any amount of memory.
            if (found := tuple(case.stored(name).shape)) != expected:
                return [f"{case.folder}: {name} has shape {found}, not {expected}; {REBUILD}"]
            verify_array(case, name)
    except PathError as error:
        return [str(error)]
    except Exception as error:
        # Whatever error a damaged file causes, the other cases are still checked.
        return [f"{case.folder}: cannot be checked ({type(error).__name__}: {error}); {REBUILD}"]
    return []


def _check_splits(dataset: PreparedDataset, cases: Sequence[CaseProperties]) -> list[str]:
    try:
        splits = dataset.splits
    except PathError as error:
        return [str(error)]
    wrong = leaks(
        splits, {c.name: c.patient for c in cases}, {c.name: c.voxels_sha256 for c in cases}
    )
    listed = Counter(name for part in PARTS for name in getattr(splits, part))
    wrong += [f"lists an unknown case {n}" for n in sorted(set(listed) - set(dataset.info.cases))]
    unlisted = set(dataset.info.cases) - set(listed) - set(splits.excluded)
    wrong += [f"does not list case {n}" for n in sorted(unlisted)]
    wrong += [f"lists case {n} twice" for n in sorted(n for n, k in listed.items() if k > 1)]
    wrong += _check_folds(splits)
    if len(cases) == len(dataset):
        duplicates = find_duplicates((c.patient, c.voxels_sha256) for c in cases)
        if sorted(splits.duplicates) != duplicates:
            wrong.append("its list of identical scans does not match the cases")
    path = dataset.root / "splits.json"
    return [f"{path}: {problem}; correct it or prepare the set again" for problem in wrong]


def _check_folds(splits: Splits) -> list[str]:
    """Each fold divides train and val; each of their cases is in val exactly once."""
    wrong = []
    cases = sorted(splits.train + splits.val)
    for index, fold in enumerate(splits.folds):
        if not fold.val or not fold.train:
            wrong.append(f"fold {index} has an empty part")
        if sorted(fold.train + fold.val) != cases:
            wrong.append(f"fold {index} does not divide the cases of train and val")
    held_out = sorted(name for fold in splits.folds for name in fold.val)
    if splits.folds and held_out != cases:
        wrong.append("a case is in the val part of no fold or of several")
    return wrong


def _summary(dataset: PreparedDataset, cases: Sequence[CaseProperties]) -> list[tuple[str, str]]:
    """`cases` are those without a problem."""
    info = dataset.info
    patients = count(len({c.patient for c in cases}), "patient")
    readable = "" if len(cases) == len(dataset) else f", of which {len(cases)} are valid,"
    rows = [
        ("set", f"{info.name} ({info.source}, recipe {info.recipe}, {info.dtype})"),
        ("fingerprint", info.fingerprint[:16]),
        ("cases", f"{len(dataset)}{readable} of {patients}"),
        ("channels", ", ".join(info.channels)),
    ]
    if cases:
        shapes = np.array([c.shape for c in cases])
        rows += [
            ("slices", f"{int(shapes[:, 0].sum()):,}"),
            ("shape (z, y, x)", axis_ranges(shapes, "d")),
            ("spacing mm (z, y, x)", spacing_text(cases)),
            ("orientation", mixed_orientations(cases) or orientation(cases)),
        ]
        for index, channel in enumerate(info.channels):
            ranges = np.array([c.image_range[index] for c in cases])
            shown = f"{ranges[:, 0].min():.3g} to {ranges[:, 1].max():.3g} after normalization"
            rows.append((f"intensity {channel}", shown))
        if cases[0].readers:
            rows.append(("readers", ", ".join(cases[0].readers)))
        rows += [("ignored voxels", f"{ignored_share(cases):.1%}")]
        rows += _class_fractions(dataset, cases)
    with suppress(PathError):  # listed among the problems
        rows += _split_rows(dataset.splits, cases)
    if info.skipped:
        rows.append(("skipped", f"{len(info.skipped)} (listed in dataset.yaml)"))
    return rows


def _split_rows(splits: Splits, cases: Sequence[CaseProperties]) -> Iterator[tuple[str, str]]:
    patient_of = {c.name: c.patient for c in cases}
    for part in PARTS:
        names = getattr(splits, part)
        patients = len({patient_of.get(n, n) for n in names})
        yield part, f"{count(len(names), 'case')}, {count(patients, 'patient')}"
    yield "folds", str(len(splits.folds))
    same = "; ".join(" = ".join(group) for group in splits.duplicates)
    yield "identical scans", f"{same} (kept in one split)" if same else "none"


def _class_fractions(
    dataset: PreparedDataset, cases: Sequence[CaseProperties]
) -> Iterator[tuple[str, str]]:
    voxels: Counter[int] = Counter()
    present: Counter[int] = Counter()
    for case in cases:
        voxels.update(case.voxels)
        present.update(list(case.voxels))
    for label, name in sorted(dataset.classes.items()):
        fraction = f"{voxels[label] / max(voxels.total(), 1):.2%} of voxels"
        shown = f"{fraction}, in {count(present[label], 'case')}"
        yield f"class {label} {name}", shown if present[label] else "warning: occurs in no case"
