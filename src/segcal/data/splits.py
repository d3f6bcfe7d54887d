"""Splits by patient: counts or proportions, seeded; identical scans stay in one part."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from segcal.core.checks import check_int
from segcal.core.errors import PathError

PARTS = ("train", "val", "test")


class Fold(BaseModel, frozen=True, extra="forbid"):
    train: tuple[str, ...]
    val: tuple[str, ...]


class Splits(BaseModel, frozen=True, extra="forbid"):
    """`splits.json`: case names of each part, and k folds over the cases outside the test set.

    `duplicates` lists groups of patients that share an identical scan.
    """

    version: Literal[1] = 1
    seed: int
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    folds: tuple[Fold, ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()


def read_splits(path: Path) -> Splits:
    try:
        return Splits.model_validate_json(path.read_bytes())
    except OSError as error:
        remedy = "run `segcal prepare` again"
        raise PathError(path, f"cannot be read ({error.strerror})", remedy) from error
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise PathError(path, f"is not a list of splits ({reason})", "correct it") from error


def find_duplicates(scans: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Groups of patients that share a scan, from (patient, hash of the scan's voxels); sorted."""
    groups: list[tuple[set[str], set[str]]] = []
    for patient, voxels in scans:
        patients, hashes = {patient}, {voxels}
        separate = []
        for group in groups:
            if patient in group[0] or voxels in group[1]:
                patients |= group[0]
                hashes |= group[1]
            else:
                separate.append(group)
        groups = [*separate, (patients, hashes)]
    return sorted(tuple(sorted(patients)) for patients, _ in groups if len(patients) > 1)


def part_sizes(patients: int, counts: Sequence[int]) -> tuple[int, ...]:
    """`counts` if they add up to the number of patients, otherwise the same proportions.

    No part is empty as long as there are patients for it (train first, then val, then test).
    """
    total = sum(counts)
    if patients == total:
        return tuple(counts)
    exact = [patients * count / total for count in counts]
    sizes = [int(x) for x in exact]
    by_remainder = sorted(range(len(counts)), key=lambda i: (sizes[i] - exact[i], i))
    for index in by_remainder[: patients - sum(sizes)]:
        sizes[index] += 1
    for index in range(min(len(sizes), patients)):
        if sizes[index] == 0:
            # Of equally large parts the later one gives up a patient.
            giver = max(range(len(sizes)), key=lambda i: (sizes[i], i))
            sizes[giver] -= 1
            sizes[index] = 1
    return tuple(sizes)


def make_splits(
    patient_of: Mapping[str, str],
    duplicates: Sequence[Sequence[str]],
    counts: Sequence[int],
    seed: int = 0,
    folds: int = 5,
) -> Splits:
    """Split cases (name → patient) so that no patient or duplicate scan is in two parts."""
    check_int("seed", seed, low=0)
    check_folds(folds)
    together = {patient for group in duplicates for patient in group}
    singles = [[patient] for patient in sorted(set(patient_of.values()) - together)]
    groups = [sorted(group) for group in duplicates] + singles
    rng = np.random.default_rng(seed)
    parts = _deal(groups, part_sizes(sum(map(len, groups)), counts), rng)
    train, val, test = (_cases_of(patient_of, part) for part in parts)
    return Splits(
        seed=seed,
        train=train,
        val=val,
        test=test,
        folds=_folds(patient_of, [*parts[0], *parts[1]], folds, rng),
        duplicates=tuple(tuple(d) for d in duplicates),
    )


def check_folds(folds: int) -> None:
    """0 means no folds; a single fold would have no training cases."""
    if check_int("folds", folds, low=0) == 1:
        raise ValueError("Expected argument `folds` to be 0 or at least 2, but got 1.")


def _deal(
    groups: list[list[str]], sizes: Sequence[int], rng: np.random.Generator
) -> list[list[list[str]]]:
    """Assign whole groups at random to parts of the given sizes, the largest groups first.

    The sizes are met exactly if there are enough single patients. A part that would stay empty
    because of large groups gets one group.
    """
    order = [groups[i] for i in rng.permutation(len(groups))]
    order.sort(key=len, reverse=True)
    parts: list[list[list[str]]] = [[] for _ in sizes]
    free = np.array(sizes, dtype=np.int64)
    for group in order:
        chance = np.where(free >= len(group), free, 0).astype(float)
        if not chance.any():
            chance = np.eye(len(sizes))[int(np.argmax(free))]
        index = int(rng.choice(len(sizes), p=chance / chance.sum()))
        parts[index].append(group)
        free[index] -= len(group)
    for index, part in enumerate(parts):
        giver = max(parts, key=lambda p: (len(p) > 1, sum(map(len, p))))
        if not part and sizes[index] > 0 and len(giver) > 1:
            # The last group is the smallest.
            part.append(giver.pop())
    return parts


def _folds(
    patient_of: Mapping[str, str], groups: list[list[str]], folds: int, rng: np.random.Generator
) -> tuple[Fold, ...]:
    count = min(folds, len(groups))
    if count < 2:
        return ()
    total = sum(map(len, groups))
    sizes = [total // count + (index < total % count) for index in range(count)]
    dealt = _deal(groups, sizes, rng)
    found = []
    for held in dealt:
        train = [group for part in dealt if part is not held for group in part]
        found.append(Fold(train=_cases_of(patient_of, train), val=_cases_of(patient_of, held)))
    return tuple(found)


def _cases_of(patient_of: Mapping[str, str], groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    patients = {patient for group in groups for patient in group}
    return tuple(sorted(name for name, patient in patient_of.items() if patient in patients))


def leaks(splits: Splits, patient_of: Mapping[str, str], scan_of: Mapping[str, str]) -> list[str]:
    """One sentence for each patient or scan in two parts (or on both sides of a fold)."""
    cuts = [("the splits", {part: getattr(splits, part) for part in PARTS})]
    for index, fold in enumerate(splits.folds):
        cuts.append((f"fold {index}", {"train": fold.train, "val": fold.val, "test": splits.test}))
    found = ((where, shared(parts, patient_of, scan_of)) for where, parts in cuts)
    return [f"in {where}, {text}" for where, each in found for text in each]


def shared(
    parts: Mapping[str, Sequence[str]], patient_of: Mapping[str, str], scan_of: Mapping[str, str]
) -> list[str]:
    """One sentence for each patient or scan that is in two of the parts."""
    found = []
    for what, of in (("patient", patient_of), ("scan", scan_of)):
        seen: dict[str, tuple[str, str]] = {}
        for part, names in parts.items():
            for name in names:
                first, example = seen.setdefault(of.get(name, name), (part, name))
                if first != part:
                    found.append(f"{name} ({part}) shares its {what} with {example} ({first})")
    return found
