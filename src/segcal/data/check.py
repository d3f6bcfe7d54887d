"""`segcal data check`: verify a prepared set and summarize it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from segcal.core.errors import PathError, list_folder
from segcal.data.case import CaseProperties, majority
from segcal.data.dataset import PreparedCase, PreparedDataset, open_dataset
from segcal.data.grid import plan_grid
from segcal.data.preparation import fingerprint
from segcal.data.splits import PARTS, Splits, find_duplicates, leaks
from segcal.data.store import array_sha256, channel_ranges, count_labels, decode_image
from segcal.data.summary import (
    axis_ranges,
    count_of,
    ignored_share,
    mixed_orientations,
    orientation,
    spacing_text,
)

_AGAIN = "delete it and prepare the set again"


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
    try:
        wrong = [*_check_properties(case, dataset)]
        for name in ("image", "label", "truth", "raters"):
            if name in case.properties.sha256:
                wrong += _check_array(case, name, dataset)
    except PathError as error:
        return [str(error)]
    except Exception as error:
        # Whatever error a damaged file causes, the other cases are still checked.
        wrong = [f"cannot be checked ({type(error).__name__}: {error})"]
    return [f"{case.folder}: {problem}; {_AGAIN}" for problem in wrong]


def _check_properties(case: PreparedCase, dataset: PreparedDataset) -> Iterator[str]:
    """case.json must follow from its grid and agree with dataset.yaml."""
    properties, info = case.properties, dataset.info
    grid = properties.grid
    if properties.name != case.name or properties.channels != len(info.channels):
        yield "case.json belongs to another case"
    if properties.dtype != info.dtype:
        yield f"dtype is {properties.dtype} in case.json, {info.dtype} in dataset.yaml"
    expected = {"image", "label"} | ({"truth"} if info.has_truth else set())
    expected |= {"raters"} if properties.readers else set()
    yield from (f"{name} is missing" for name in sorted(expected - set(properties.sha256)))
    planned = plan_grid(
        grid.original_shape, grid.original_spacing_mm, np.array(grid.affine), info.grid
    )
    if grid != planned or properties.shape != grid.shape:
        yield "the grid does not follow from the recipe"
    if not np.allclose(properties.spacing_mm, grid.spacing_mm):
        yield "the spacing does not follow from the grid"
    per_channel = (properties.scale, properties.offset, properties.intensity)
    if {len(values) for values in per_channel} != {properties.channels}:
        yield "case.json has scales or intensities for another number of channels"


def _check_array(case: PreparedCase, name: str, dataset: PreparedDataset) -> list[str]:
    properties = case.properties
    array = case.stored(name)
    lead, dtype = {
        "image": ((properties.channels,), properties.dtype),
        "label": ((), "uint8"),
        "truth": ((dataset.num_classes,), "float16"),
        "raters": ((len(properties.readers),), "uint8"),
    }[name]
    # Before any voxel is read: a damaged shape may need any amount of memory.
    if tuple(array.shape) != (*lead, *properties.shape):
        return [f"{name} has shape {tuple(array.shape)}, not {(*lead, *properties.shape)}"]
    if array.dtype != np.dtype(dtype):
        return [f"{name} is {array.dtype}, not {dtype}"]
    voxels = case.read(name)
    if array_sha256(voxels) != properties.sha256[name]:
        return [f"{name} was changed or damaged (its hash does not match)"]
    wrong = []
    if name == "label":
        counts = count_labels(voxels)
        if set(counts) - set(dataset.classes):
            wrong.append("label holds values that are not classes in dataset.yaml")
        if counts != properties.voxels:
            wrong.append("the voxel counts in case.json do not match label")
    if name == "raters":
        if [*map(count_labels, voxels)] != [*properties.readers.values()]:
            wrong.append("the voxel counts in case.json do not match raters")
        if not np.array_equal(majority(voxels), case.label()):
            wrong.append("label is not the majority of raters")
    if name == "image":
        decoded = decode_image(voxels, properties.scale, properties.offset)
        if not np.allclose(channel_ranges(decoded), properties.image_range):
            wrong.append("image does not match the range, scale or offset in case.json")
    return wrong


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
    patients = count_of(len({c.patient for c in cases}), "patient")
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
        yield part, f"{count_of(len(names), 'case')}, {count_of(patients, 'patient')}"
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
        shown = f"{fraction}, in {count_of(present[label], 'case')}"
        yield f"class {label} {name}", shown if present[label] else "warning: occurs in no case"
