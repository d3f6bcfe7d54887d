"""Splits: counts, proportions, and nothing that leaks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.data import make_splits
from segcal.data.splits import Fold, Splits, find_duplicates, leaks, part_sizes


@pytest.mark.parametrize(
    ("patients", "counts", "expected"),
    [
        (100, (70, 10, 20), (70, 10, 20)),
        (360, (240, 40, 80), (240, 40, 80)),
        (361, (240, 40, 80), (241, 40, 80)),
        (335, (235, 35, 65), (235, 35, 65)),
        (260, (70, 10, 20), (182, 26, 52)),
        (3, (70, 10, 20), (1, 1, 1)),
        (2, (70, 10, 20), (1, 1, 0)),
        (1, (70, 10, 20), (1, 0, 0)),
    ],
)
def test_sizes(patients: int, counts: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert part_sizes(patients, counts) == expected


@given(st.integers(3, 500), st.tuples(*[st.integers(1, 300)] * 3))
def test_sizes_always_add_up(patients: int, counts: tuple[int, ...]) -> None:
    sizes = part_sizes(patients, counts)
    assert sum(sizes) == patients
    assert min(sizes) >= 1
    for size, count in zip(sizes, counts, strict=True):
        assert abs(size - patients * count / sum(counts)) < 2


def test_duplicates_join_in_chains() -> None:
    scans = [("a", "1"), ("b", "1"), ("b", "2"), ("c", "2"), ("d", "3"), ("d", "3")]
    assert find_duplicates(scans) == [("a", "b", "c")]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(3, 60),
    st.lists(st.lists(st.integers(0, 59), min_size=2, max_size=4), max_size=5),
    st.integers(0, 5),
)
def test_no_patient_or_scan_is_in_two_parts(
    patients: int, same: list[list[int]], seed: int
) -> None:
    patient_of = {f"p{p:02d}_f{f}": f"p{p:02d}" for p in range(patients) for f in range(2)}
    scan_of = {name: name for name in patient_of}
    pairs = [(p, name) for name, p in patient_of.items()]
    for number, group in enumerate(same):
        for p in group:
            scan_of[f"p{p % patients:02d}_f0"] = f"same {number}"
            pairs.append((f"p{p % patients:02d}", f"same {number}"))
    duplicates = find_duplicates(pairs)
    splits = make_splits(patient_of, duplicates, (70, 10, 20), seed)
    assert leaks(splits, patient_of, scan_of) == []
    assert sorted(splits.train + splits.val + splits.test) == sorted(patient_of)
    for fold in splits.folds:
        assert sorted(fold.train + fold.val) == sorted(splits.train + splits.val)
    held = [name for fold in splits.folds for name in fold.val]
    assert sorted(held) == sorted(splits.train + splits.val if splits.folds else [])
    again = make_splits(patient_of, duplicates, (70, 10, 20), seed)
    assert splits == again


def test_counts_are_exact_with_a_duplicate_pair() -> None:
    patient_of = {f"p{p:03d}_{f}": f"p{p:03d}" for p in range(100) for f in ("ED", "ES")}
    seen = set()
    for seed in range(30):
        splits = make_splits(patient_of, [("p074", "p076")], (70, 10, 20), seed)
        assert [len(splits.train), len(splits.val), len(splits.test)] == [140, 20, 40]
        assert len(splits.folds) == 5
        assert {len(fold.val) for fold in splits.folds} == {32}
        part = next(n for n in ("train", "val", "test") if "p074_ED" in getattr(splits, n))
        assert "p076_ES" in getattr(splits, part)
        seen.add(part)
    assert len(seen) > 1
    assert (
        make_splits(patient_of, [], (70, 10, 20), 0).train
        != make_splits(patient_of, [], (70, 10, 20), 1).train
    )
    assert len(make_splits(patient_of, [], (70, 10, 20), folds=3).folds) == 3


def test_leaks_are_named() -> None:
    splits = Splits(
        seed=0,
        train=("a1", "b1"),
        val=("a2",),
        test=("c1",),
        folds=(Fold(train=("a1",), val=("b1",)),),
    )
    patients = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
    scans = {"a1": "1", "a2": "2", "b1": "3", "c1": "3"}
    found = leaks(splits, patients, scans)
    assert "in the splits, a2 (val) shares its patient with a1 (train)" in found
    assert "in the splits, c1 (test) shares its scan with b1 (train)" in found
    assert any(line.startswith("in fold 0, c1 (test) shares its scan") for line in found)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="`seed`"):
        make_splits({"a": "a"}, [], (1, 1, 1), seed=-1)
    for folds in (-1, 1):
        with pytest.raises(ValueError, match="`folds`"):
            make_splits({"a": "a"}, [], (1, 1, 1), folds=folds)


@pytest.mark.parametrize("seed", range(10))
def test_large_groups_leave_no_part_empty(seed: int) -> None:
    patient_of = {f"p{p}": f"p{p}" for p in range(12)}
    groups = [[f"p{4 * g + p}" for p in range(4)] for g in range(3)]
    splits = make_splits(patient_of, groups, (70, 10, 20), seed)
    assert {len(splits.train), len(splits.val), len(splits.test)} == {4}
    assert all(fold.val and fold.train for fold in splits.folds)
