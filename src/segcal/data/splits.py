"""Splits by patient: counts or proportions, seeded; identical scans stay in one part."""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel

from segcal.core.checks import check_int
from segcal.core.documents import read_json, read_model
from segcal.core.errors import PathError, read_errors
from segcal.data.case_tables import read_case_table

PARTS = ("train", "val", "test")


class Fold(BaseModel, frozen=True, extra="forbid"):
    train: tuple[str, ...]
    val: tuple[str, ...]

    def only(self, names: Container[str]) -> "Fold":
        """The fold without cases that are not in `names`."""
        train, val = (tuple(n for n in part if n in names) for part in (self.train, self.val))
        return Fold(train=train, val=val)


class Splits(BaseModel, frozen=True, extra="forbid"):
    """`splits.json`: case names of each part, and k folds over the cases outside the test set.

    `duplicates` lists groups of patients that share an identical scan; `excluded` the cases left
    out of all parts because their scan is in a test set that was given. `generated_sha256` tells
    whether the file was edited.
    """

    version: Literal[1] = 1
    seed: int
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    folds: tuple[Fold, ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()
    excluded: tuple[str, ...] = ()
    generated_sha256: str = ""

    def sha256(self) -> str:
        """Hash of the parts and folds."""
        content = self.model_dump_json(include={*PARTS, "folds"})
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def edited(self) -> bool:
        """Whether a user wrote or changed the parts, which `prepare` then never replaces."""
        return self.generated_sha256 != self.sha256()


def read_splits(path: Path) -> Splits:
    remedy = "correct it, or remove it and run `segcal prepare` again"
    return read_model(path, Splits, "a list of splits", remedy)


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
    given: "GivenParts | None" = None,
) -> Splits:
    """Split cases (name → patient) so that no patient or duplicate scan is in two parts.

    `given` fixes the test cases, or all parts. Other patients that share a scan with a given test
    case are left out.
    """
    check_int("seed", seed, low=0)
    if check_int("folds", folds, low=0) == 1:  # it would have no training cases
        raise ValueError("Expected argument `folds` to be 0 or at least 2, but got 1.")
    names = {} if given is None else _known_cases(given, patient_of)
    held = {patient_of[name] for name in names.get("test", ())}
    out = {patient_of[name] for name in names.get("excluded", ())}
    out |= {patient for group in duplicates if held & set(group) for patient in group} - held
    excluded = _cases_of(patient_of, [sorted(out)])
    free = set(patient_of.values()) - held - out
    together = [sorted(group) for group in duplicates if set(group) <= free]
    singles = [[patient] for patient in sorted(free - {p for group in together for p in group})]
    rng = np.random.default_rng(seed)
    sizes = part_sizes(len(free), counts if given is None else counts[:2])
    parts = _deal(together + singles, sizes, rng)
    train, val, test = (_cases_of(patient_of, part) for part in (*parts, [])[:3])
    dealt = _folds(patient_of, [*parts[0], *parts[1]], folds, rng)
    if given is not None:
        kept = set(patient_of) - {*excluded}
        test = names["test"]
        if names["val"]:
            train, val = (tuple(n for n in names[part] if n in kept) for part in ("train", "val"))
        dealt = tuple(fold.only(kept) for fold in given.folds) or dealt
    result = Splits(
        seed=seed, train=train, val=val, test=test, folds=dealt,
        duplicates=tuple(tuple(d) for d in duplicates), excluded=excluded,
    )  # fmt: skip
    if given is not None and given.by_user:
        return result  # counts as edited
    return result.model_copy(update={"generated_sha256": result.sha256()})


@dataclass(frozen=True)
class GivenParts:
    """Parts that are not drawn: only "test" (train and val are drawn from the rest), or all.

    `by_user` is False if the folders of the data set decide.
    """

    parts: Mapping[str, Sequence[str]]
    folds: tuple[Fold, ...] = ()
    by_user: bool = True


def _known_cases(given: GivenParts, patient_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The cases of each given part; a ValueError if parts share a patient."""
    names = {
        part: tuple(sorted(set(given.parts.get(part, ())) & set(patient_of)))
        for part in (*PARTS, "excluded")
    }
    held = {patient_of[name] for name in names["test"]}
    crossing = shared(names, patient_of, {}) + [
        f"{name} shares its patient {patient} with a test case"
        for name, patient in patient_of.items()
        if patient in held and name not in names["test"]
    ]
    if crossing:
        problem = f"the given parts share a patient: {crossing[0]}"
        raise ValueError(f"{problem}; correct them, or correct --patient")
    return names


_PART_NAMES = {
    "train": "train", "training": "train", "tr": "train", "val": "val", "valid": "val",
    "validation": "val", "test": "test", "testing": "test", "ts": "test", "excluded": "excluded",
}  # fmt: skip


def read_given_parts(path: Path, patient_of: Mapping[str, str]) -> GivenParts:
    """The parts in a file of `--splits`.

    The file is a `splits.json` of segcal, a `splits_final.json` of nnU-Net (its folds; fold 0 gives
    train and val, the cases in no fold are the test set), or a CSV file with the columns `case` or
    `patient`, and `part`.
    """
    if path.suffix.lower() == ".json":
        given = _read_json_parts(path, patient_of)
    else:
        table = read_case_table(path, patient_of, ("part", "split", "set"))
        parts: dict[str, list[str]] = {part: [] for part in _PART_NAMES.values()}
        for name, value in table.items():
            if value.lower() not in _PART_NAMES:
                raise PathError(path, f"has the part {value!r}", "use train, val and test")
            parts[_PART_NAMES[value.lower()]].append(name)
        given = GivenParts(parts)
    listed = Counter(name for names in given.parts.values() for name in names)
    unknown = sorted(set(listed) - set(patient_of))
    missing = sorted(set(patient_of) - set(listed))
    twice = sorted(name for name, count in listed.items() if count > 1)
    for names, problem in ((unknown, "lists the unknown case"), (twice, "lists twice the case"),
                           (missing, "does not list the case")):  # fmt: skip
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise PathError(path, f"{problem} {names[0]}{more}", "correct the file of --splits")
    return given


def _read_json_parts(path: Path, patient_of: Mapping[str, str]) -> GivenParts:
    try:
        with read_errors(path, "check --splits"):
            content = read_json(path)
        if isinstance(content, list):
            folds = tuple(Fold(train=f["train"], val=f["val"]) for f in content)
            listed = {name for fold in folds for name in (*fold.train, *fold.val)}
            test = sorted(set(patient_of) - listed)
            return GivenParts({**dict(folds[0]), "test": test}, folds)
        parts = {_PART_NAMES[k]: list(v) for k, v in content.items() if k in _PART_NAMES}
        folds = tuple(Fold.model_validate(fold) for fold in content.get("folds", ()))
        if not parts:
            raise ValueError("no train, val or test")
        return GivenParts(parts, folds)
    except PathError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"is not a list of splits ({str(error).splitlines()[0]})"
        remedy = "give {train, val, test}, nnU-Net's splits_final.json or a CSV file"
        raise PathError(path, problem, remedy) from error


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
