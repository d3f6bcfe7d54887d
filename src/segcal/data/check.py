"""`segcal data check`: verify a prepared set, and sum it up."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from segcal.data.case import CaseProperties
from segcal.data.dataset import PreparedCase, PreparedDataset, open_dataset
from segcal.data.errors import DataError
from segcal.data.prepare import fingerprint
from segcal.data.splits import PARTS, leaks
from segcal.data.store import array_sha256


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
    if len(good) == len(dataset):
        recipes = {c.recipe_sha256 for c in good}
        expected = fingerprint(good, dataset.classes, min(recipes))
        if len(recipes) > 1 or expected != dataset.fingerprint:
            problems.append(
                f"{dataset.root / 'dataset.yaml'}: does not belong to these cases "
                "(fingerprint); prepare the set again"
            )
    problems += _check_splits(dataset, good)
    return CheckReport(tuple(problems), tuple(_summary(dataset, good)), tuple(good))


def _check_case(case: PreparedCase, dataset: PreparedDataset) -> list[str]:
    try:
        properties = case.properties
        arrays = {name: case.stored(name) for name in properties.sha256}
        wrong = []
        for name, array in arrays.items():
            voxels = np.asarray(array[:])
            if voxels.shape[-3:] != properties.shape:
                wrong.append(f"{name} has shape {voxels.shape}, not {properties.shape}")
            elif array_sha256(voxels) != properties.sha256[name]:
                wrong.append(f"{name} was changed or damaged (hash)")
            elif name == "label" and set(np.unique(voxels).tolist()) - set(dataset.classes):
                wrong.append("label holds values that dataset.yaml does not name")
        missing = {"image", "label"} - set(arrays)
        wrong += [f"{name} is missing" for name in sorted(missing)]
        if not np.allclose(properties.spacing_mm, properties.grid.spacing_mm):
            wrong.append("spacing does not follow from its grid")
        if properties.name != case.name or properties.channels != len(dataset.info.channels):
            wrong.append("case.json belongs to another case")
    except DataError as error:
        return [str(error)]
    except (RuntimeError, ValueError, OSError) as error:
        wrong = [f"cannot be unpacked ({error})"]
    return [f"{case.folder}: {what}; delete it and prepare the set again" for what in wrong]


def _check_splits(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[str]:
    path = dataset.root / "splits.json"
    try:
        splits = dataset.splits
    except DataError as error:
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
    return [f"{path}: {what}; correct it or prepare the set again" for what in wrong]


def _summary(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[tuple[str, str]]:
    info = dataset.info
    rows = [
        ("set", f"{info.name} ({info.source}, recipe {info.recipe}, {info.dtype})"),
        ("fingerprint", info.fingerprint[:16]),
        ("cases", f"{len(info.cases)} of {len({c.patient for c in cases})} patients"),
        ("channels", ", ".join(info.channels)),
    ]
    if cases:
        shapes = np.array([c.shape for c in cases])
        spacing = np.array([c.spacing_mm for c in cases])
        rows += [
            ("slices", f"{int(shapes[:, 0].sum()):,}"),
            ("shape (z, y, x)", " × ".join(_range(column, "d") for column in shapes.T)),
            ("spacing mm (z, y, x)", " × ".join(_range(column, ".3g") for column in spacing.T)),
            ("intensity", _intensity(cases)),
        ]
        rows += _fractions(dataset, cases)
    try:
        splits = dataset.splits
    except DataError:
        return rows
    patients = {c.name: c.patient for c in cases}
    for part in PARTS:
        names = getattr(splits, part)
        count = len({patients.get(n, n) for n in names})
        rows.append((part, f"{len(names)} cases, {count} patients"))
    rows.append(("folds", str(len(splits.folds))))
    same = "; ".join(" = ".join(group) for group in splits.duplicates)
    rows.append(("identical scans", f"{same} (kept in one split)" if same else "none"))
    if info.skipped:
        rows.append(("left out", f"{len(info.skipped)} (listed in dataset.yaml)"))
    return rows


def _fractions(dataset: PreparedDataset, cases: list[CaseProperties]) -> list[tuple[str, str]]:
    total: Counter[int] = Counter()
    present: Counter[int] = Counter()
    for case in cases:
        total.update(case.voxels)
        present.update(list(case.voxels))
    voxels = sum(total.values())
    return [
        (
            f"class {label} {name}",
            f"{total[label] / voxels:.2%} of voxels, in {present[label]} cases",
        )
        for label, name in sorted(dataset.classes.items())
    ]


def _intensity(cases: list[CaseProperties]) -> str:
    low = min(c.image_range[0] for c in cases)
    high = max(c.image_range[1] for c in cases)
    return f"{low:.3g} to {high:.3g} after normalisation"


def _range(values: np.ndarray, form: str) -> str:
    low, high = values.min(), values.max()
    return format(low, form) if np.isclose(low, high) else f"{low:{form}}–{high:{form}}"
