"""`segcal data check`: verify a prepared set, and sum it up."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from segcal.core.errors import PathError
from segcal.data.case import CaseProperties
from segcal.data.dataset import PreparedCase, PreparedDataset, open_dataset
from segcal.data.grid import plan_grid
from segcal.data.orientation import axis_codes
from segcal.data.preparation import fingerprint
from segcal.data.splits import PARTS, Splits, find_duplicates, leaks
from segcal.data.store import array_sha256, channel_ranges, count_labels, decode_image


@dataclass(frozen=True)
class CheckReport:
    """`problems` is empty for a clean set; `summary` is a list of (what, value) to show."""

    problems: tuple[str, ...]
    summary: tuple[tuple[str, str], ...]
    cases: tuple[CaseProperties, ...] = field(repr=False, default=())


def check_dataset(folder: Path | str) -> CheckReport:
    """Read everything once: hashes, shapes, labels, splits, leaks."""
    dataset = open_dataset(folder)
    problems: list[str] = []
    good: list[CaseProperties] = []
    for case in dataset:
        found = _check_case(case, dataset)
        problems += found
        if not found:
            good.append(case.properties)
    there = {p.name for p in (dataset.root / "cases").iterdir() if not p.name.startswith(".")}
    problems += [
        f"{dataset.root / 'cases' / name}: is not listed in dataset.yaml; remove it"
        for name in sorted(there - set(dataset.info.cases))
    ]
    if len(good) == len(dataset) and fingerprint(good, dataset.info) != dataset.fingerprint:
        problems.append(
            f"{dataset.root / 'dataset.yaml'}: it or a case.json was changed (fingerprint); "
            "prepare the set again"
        )
    problems += _check_splits(dataset, good)
    return CheckReport(tuple(problems), tuple(_summary(dataset, good)), tuple(good))


def _check_case(case: PreparedCase, dataset: PreparedDataset) -> list[str]:
    try:
        wrong = [*_check_properties(case, dataset)]
        for name in ("image", "label", "truth"):
            if name in case.properties.sha256:
                wrong += _check_array(case, name, dataset)
    except PathError as error:
        return [str(error)]
    except Exception as error:
        # Whatever a damaged file provokes, the other cases are still to be checked.
        wrong = [f"cannot be checked ({type(error).__name__}: {error})"]
    return [f"{case.folder}: {what}; delete it and prepare the set again" for what in wrong]


def _check_properties(case: PreparedCase, dataset: PreparedDataset) -> Iterator[str]:
    """What case.json says must follow from its grid and agree with dataset.yaml."""
    properties, info = case.properties, dataset.info
    grid = properties.grid
    if properties.name != case.name or properties.channels != len(info.channels):
        yield "case.json belongs to another case"
    if properties.dtype != info.dtype:
        yield f"case.json says {properties.dtype}, dataset.yaml {info.dtype}"
    expected = {"image", "label"} | ({"truth"} if info.has_truth else set())
    yield from (f"{name} is missing" for name in sorted(expected - set(properties.sha256)))
    planned = plan_grid(
        grid.original_shape, grid.original_spacing_mm, np.array(grid.affine), info.grid
    )
    if grid != planned or properties.shape != grid.shape:
        yield "its grid does not follow from the recipe"
    if not np.allclose(properties.spacing_mm, grid.spacing_mm):
        yield "spacing does not follow from its grid"
    per_channel = (properties.scale, properties.offset, properties.intensity)
    if {len(values) for values in per_channel} != {properties.channels}:
        yield "case.json has scales or intensities of another number of channels"


def _check_array(case: PreparedCase, name: str, dataset: PreparedDataset) -> list[str]:
    properties = case.properties
    array = case.stored(name)
    lead, dtype = {
        "image": ((properties.channels,), properties.dtype),
        "label": ((), "uint8"),
        "truth": ((dataset.num_classes,), "float16"),
    }[name]
    # Before anything is read: a damaged shape may ask for any amount of memory.
    if tuple(array.shape) != (*lead, *properties.shape):
        return [f"{name} has shape {tuple(array.shape)}, not {(*lead, *properties.shape)}"]
    if array.dtype != np.dtype(dtype):
        return [f"{name} is {array.dtype}, not {dtype}"]
    voxels = case.read(name)
    if array_sha256(voxels) != properties.sha256[name]:
        return [f"{name} was changed or damaged (hash)"]
    wrong = []
    if name == "label":
        counts = count_labels(voxels)
        if set(counts) - set(dataset.classes):
            wrong.append("label holds values that dataset.yaml does not name")
        if counts != properties.voxels:
            wrong.append("case.json counts other voxels than label has")
    if name == "image":
        decoded = decode_image(voxels, properties.scale, properties.offset)
        if not np.allclose(channel_ranges(decoded), properties.image_range):
            wrong.append("image does not have the range, scale or offset of case.json")
    return wrong


def _check_splits(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[str]:
    path = dataset.root / "splits.json"
    try:
        splits = dataset.splits
    except PathError as error:
        return [str(error)]
    wrong = leaks(
        splits, {c.name: c.patient for c in cases}, {c.name: c.voxels_sha256 for c in cases}
    )
    named = Counter(name for part in PARTS for name in getattr(splits, part))
    unknown = sorted(set(named) - set(dataset.info.cases))
    missing = sorted(set(dataset.info.cases) - set(named))
    twice = sorted(name for name, count in named.items() if count > 1)
    wrong += [f"names {n}, which is no case" for n in unknown]
    wrong += [f"leaves out {n}" for n in missing]
    wrong += [f"names {n} twice" for n in twice]
    wrong += _check_folds(splits)
    if len(cases) == len(dataset):
        same = find_duplicates((c.patient, c.voxels_sha256) for c in cases)
        if sorted(splits.duplicates) != same:
            wrong.append("lists other identical scans than there are")
    return [f"{path}: {what}; correct it or prepare the set again" for what in wrong]


def _check_folds(splits: Splits) -> list[str]:
    """Each fold divides train and val; each of their cases is held out once."""
    wrong = []
    cases = sorted(splits.train + splits.val)
    for index, fold in enumerate(splits.folds):
        if not fold.val or not fold.train:
            wrong.append(f"has an empty part in fold {index}")
        if sorted(fold.train + fold.val) != cases:
            wrong.append(f"has a fold {index} that does not divide the cases of train and val")
    held = sorted(name for fold in splits.folds for name in fold.val)
    if splits.folds and held != cases:
        wrong.append("holds out a case in no fold or in several")
    return wrong


def _summary(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[tuple[str, str]]:
    info = dataset.info
    rows = [
        ("set", f"{info.name} ({info.source}, recipe {info.recipe}, {info.dtype})"),
        ("fingerprint", info.fingerprint[:16]),
        ("cases", _counts(len(info.cases), cases)),
        ("channels", ", ".join(info.channels)),
    ]
    if cases:
        shapes = np.array([c.shape for c in cases])
        spacing = np.array([c.spacing_mm for c in cases])
        rows += [
            ("slices", f"{int(shapes[:, 0].sum()):,}"),
            ("shape (z, y, x)", " × ".join(_range(column, "d") for column in shapes.T)),
            ("spacing mm (z, y, x)", " × ".join(_range(column, ".3g") for column in spacing.T)),
            ("orientation", _orientation(cases)),
        ]
        rows += _intensities(dataset, cases)
        rows += _fractions(dataset, cases)
    try:
        splits = dataset.splits
    except PathError:
        return rows
    patients = {c.name: c.patient for c in cases}
    for part in PARTS:
        names = getattr(splits, part)
        count = len({patients.get(n, n) for n in names})
        rows.append((part, f"{_count(len(names), 'case')}, {_count(count, 'patient')}"))
    rows.append(("folds", str(len(splits.folds))))
    same = "; ".join(" = ".join(group) for group in splits.duplicates)
    rows.append(("identical scans", f"{same} (kept in one split)" if same else "none"))
    if info.skipped:
        rows.append(("left out", f"{len(info.skipped)} (listed in dataset.yaml)"))
    return rows


def _counts(listed: int, cases: list[CaseProperties]) -> str:
    """Of those that can be read it is known whose they are."""
    patients = _count(len({c.patient for c in cases}), "patient")
    if len(cases) == listed:
        return f"{listed} of {patients}"
    return f"{listed}, of which {len(cases)} can be read, of {patients}"


def _fractions(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[tuple[str, str]]:
    total: Counter[int] = Counter()
    present: Counter[int] = Counter()
    for case in cases:
        total.update(case.voxels)
        present.update(list(case.voxels))
    voxels = sum(total.values())

    def share(label: int) -> str:
        if not present[label]:
            return "warning: in no case; a network would get an output for nothing"
        return f"{total[label] / voxels:.2%} of voxels, in {_count(present[label], 'case')}"

    return [(f"class {k} {name}", share(k)) for k, name in sorted(dataset.classes.items())]


def _intensities(
    dataset: PreparedDataset, cases: list[CaseProperties]
) -> Iterator[tuple[str, str]]:
    """One row per channel."""
    for index, channel in enumerate(dataset.info.channels):
        ranges = np.array([c.image_range[index] for c in cases])
        shown = f"{ranges[:, 0].min():.3g} to {ranges[:, 1].max():.3g} after normalisation"
        yield f"intensity {channel}", shown


def _orientation(cases: list[CaseProperties]) -> str:
    """Where the source files' axes point: one word when all agree, a warning otherwise."""
    counts = Counter(axis_codes(c.grid.affine) for c in cases)
    if len(counts) == 1:
        return f"{next(iter(counts))} (x, y, z of the source files)"
    kinds = ", ".join(f"{code} in {_count(n, 'case')}" for code, n in counts.most_common())
    return f"warning: mixed ({kinds}); left and right may differ between cases"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _range(values: np.ndarray, form: str) -> str:
    low, high = values.min(), values.max()
    return format(low, form) if np.isclose(low, high) else f"{low:{form}}–{high:{form}}"
