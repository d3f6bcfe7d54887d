"""The correction of expected Dice: by hand, its limits, its choice, and in a fit."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest

from helpers.assurance_phantoms import write_phantoms
from helpers.softmax_files import write_nifti, write_prediction
from segcal.assurance import fit_assurance, summarize
from segcal.assurance.dice_line import DiceLine, fit_dice_line
from segcal.assurance.model import load_assurance, missed_share, nanmean, scan_dice
from segcal.assurance.summary import CaseSummary
from segcal.predictions import find_pairs
from segcal.stats import make_folds

Folds = list[tuple[np.ndarray, np.ndarray]]


def folds_of(units: np.ndarray, number: int = 10) -> Folds:
    patients = np.unique(units)
    parts = [np.isin(units, patients[part]) for part in make_folds(patients.tolist(), number)]
    return [(np.flatnonzero(part), np.flatnonzero(~part)) for part in parts]


def names(n: int, scans: int = 1) -> np.ndarray:
    return np.array([f"p{i // scans:03d}" for i in range(n)])


def test_corrected_by_hand() -> None:
    line = DiceLine(-0.1, 0.5)
    assert line.corrected(0.8) == pytest.approx(0.3)
    assert line.corrected(0.1) == 0.0  # clipped
    assert DiceLine(0.3, 1.0).corrected(0.9) == 1.0
    assert line.corrected(0.0) == 0.0  # an empty mask
    assert math.isnan(line.corrected(math.nan))
    assert DiceLine().corrected(0.7) == 0.7


def test_an_offset_and_a_line_are_found() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 0.95, 60)
    noise = rng.normal(0, 0.01, 60)
    line, _ = fit_dice_line(x, x - 0.1 + noise, names(60), folds_of(names(60)))
    assert line.slope == 1.0
    assert line.offset == pytest.approx(-0.1, abs=0.005)
    line, corrected = fit_dice_line(x, 1.4 * x - 0.45 + noise, names(60), folds_of(names(60)))
    assert line == pytest.approx((-0.45, 1.4), abs=0.03)
    assert np.abs(corrected - (1.4 * x - 0.45)).max() < 0.01
    line, _ = fit_dice_line(x, 0.7 + 0 * x - 0.2 * x + noise, names(60), folds_of(names(60)))
    assert line.slope == 0.0  # never falling: a scan with more doubt is not better
    assert line.offset == pytest.approx((0.7 - 0.2 * x + noise).mean(), abs=1e-9)


def test_right_values_hardly_change() -> None:
    """Over repetitions the correction costs little where none is needed."""
    change = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.uniform(0.7, 0.9, 20)
        true = x + rng.normal(0, 0.03, 20)
        line, _ = fit_dice_line(x, true, names(20), folds_of(names(20)))
        change.append([line.corrected(value) - value for value in (0.75, 0.8, 0.85)])
    assert np.sqrt(np.square(change).mean()) < 0.03 / np.sqrt(10)
    assert abs(np.mean(change)) < 0.002


def test_each_scan_is_corrected_by_others() -> None:
    """Changing the Dice of a scan does not change its own corrected value."""
    rng = np.random.default_rng(1)
    x, units = rng.uniform(0.5, 0.9, 48), names(48, scans=2)
    true = x - 0.2 + rng.normal(0, 0.01, 48)
    _, before = fit_dice_line(x, true, units, folds_of(units))
    true[0] += 0.03
    _, after = fit_dice_line(x, true, units, folds_of(units))
    assert after[0] == before[0]
    assert after[1] == before[1]  # the other scan of this patient
    assert (after[2:] != before[2:]).any()


def test_patients_count_once() -> None:
    x = np.full(40, 0.8)
    true = np.where(np.arange(40) < 20, 0.5, 0.7)
    each = names(40)
    one_has_twenty = np.array(["p"] * 20 + [f"q{i}" for i in range(20)])
    assert fit_dice_line(x, true, each, folds_of(each))[0].offset == pytest.approx(-0.2)
    weighted = fit_dice_line(x, true, one_has_twenty, folds_of(one_has_twenty))[0].offset
    assert weighted == pytest.approx((0.5 + 20 * 0.7) / 21 - 0.8)


def test_too_few_patients_and_empty_masks_leave_it_as_it_is() -> None:
    for n, corrects in ((19, False), (20, True)):
        x = np.linspace(0.6, 0.9, n)
        line, corrected = fit_dice_line(x, x - 0.3, names(n), folds_of(names(n)))
        assert (line != DiceLine()) == corrects
        assert (corrected != x).any() == corrects
        twice, units = np.repeat(x, 2), names(2 * n, scans=2)
        line, _ = fit_dice_line(twice, twice - 0.3, units, folds_of(units))
        assert (line != DiceLine()) == corrects  # patients, not scans
    empty = np.array([0.0, np.nan] * 12)
    line, corrected = fit_dice_line(empty, empty, names(24), folds_of(names(24)))
    assert line == DiceLine()
    np.testing.assert_array_equal(corrected, empty)


def test_a_structure_without_a_mask_does_not_lower_the_dice_of_a_scan(tmp_path: Path) -> None:
    """Absent in labels and masks, but with small probabilities that add up to a few voxels."""
    folder = write_phantoms(tmp_path / "all", range(40))
    for path in sorted((folder / "probs").iterdir()):
        probs = np.asarray(nib.load(path).dataobj).T
        rest = np.full_like(probs[:1], 0.001)
        write_prediction(
            folder / "probs", path.name[:-7], "nifti", np.append(probs * 0.999, rest, 0)
        )
    pairs = find_pairs(folder / "probs", folder / "labels")
    fitted = fit_assurance(replace(pairs, pairs=pairs.pairs[:24]), ["background", "a", "b", "c"])
    cases = [pair.load() for pair in pairs.pairs[24:]]
    for case in (summarize(each.values, each.target, each.spacing_mm) for each in cases):
        assert (case.hard_volume(2), fitted.structure_dice(case, 2)) == (0, 0)
        true = nanmean([case.dice(s) for s in range(3)])  # of the first two
        assert fitted.dice(case).mean == pytest.approx(true, abs=0.15)
    alone = CaseSummary(**{**vars(case), "inside_count": np.zeros_like(case.inside_count)})
    assert fitted.dice(alone).mean == 0  # nothing is predicted


def test_a_structure_that_was_never_absent_counts_where_it_has_no_mask(tmp_path: Path) -> None:
    folder = write_phantoms(tmp_path / "all", range(24))
    pairs = find_pairs(folder / "probs", folder / "labels")
    fitted = fit_assurance(pairs, ["background", "a", "b"])
    assert [structure.missed for structure in fitted.structures] == [1, 1]
    case = pairs.pairs[0].load()
    whole = summarize(case.values, case.target, case.spacing_mm)
    count = whole.inside_count.copy()
    count[1] = 0
    without = CaseSummary(**{**vars(whole), "inside_count": count})
    assert fitted.dice(without).mean == pytest.approx(fitted.structure_dice(whole, 0) / 2)


def test_the_share_of_missed_structures_by_hand() -> None:
    """It exists in 2 of 4 scans, and in one of the two without a mask."""
    masks, truth = [1, 1, 0, 0], [1, 0, 1, 0]
    cases = [
        SimpleNamespace(hard_volume=lambda s, m=m: m, true_volume=lambda s, t=t: t)
        for m, t in zip(masks, truth, strict=True)
    ]
    assert missed_share(cases, 0, np.ones(4)) == pytest.approx((1 + 0.5) / (2 + 1))
    # Two scans of one patient count half each: it exists in (.5 + 1) / 3 patients.
    weights = np.array([0.5, 0.5, 1, 1])
    assert missed_share(cases, 0, weights) == pytest.approx((1 + 0.5) / (2 + 1))
    weights = np.array([1, 1, 1, 0.5])
    assert missed_share(cases, 0, weights) == pytest.approx((1 + 2 / 3.5) / (1.5 + 1))
    assert scan_dice(cases[2], [0.9], [0.3]) == 0.9  # no structure has a mask


def test_the_expected_mean_over_the_structures_that_may_exist_by_hand() -> None:
    case = SimpleNamespace(hard_volume=lambda s: s in (0, 3))
    dices, missed = [0.9, 0.0, 0.0, 0.7], [0.5, 0.4, 0.1, 0.5]
    none, one, both = 0.6 * 0.9, 0.4 * 0.9 + 0.6 * 0.1, 0.4 * 0.1
    expected = 1.6 * (none / 2 + one / 3 + both / 4)
    assert scan_dice(case, dices, missed) == pytest.approx(expected)


def test_a_fit_corrects_a_reader_who_marks_less(tmp_path: Path) -> None:
    """Labels without every other column: expected Dice is right on average, for new scans, too."""
    folder = write_phantoms(tmp_path / "all", range(40))
    for path in sorted((folder / "labels").iterdir()):
        target = np.asarray(nib.load(path).dataobj).astype(np.uint8).T
        target[:, ::2] = 0
        write_nifti(path, target)
    labels = folder / "labels"
    names_of = ["background", "a", "b"]
    pairs = find_pairs(folder / "probs", labels)
    fitted = fit_assurance(replace(pairs, pairs=pairs.pairs[:24]), names_of)
    new = [pair.load() for pair in pairs.pairs[24:]]
    cases = [summarize(case.values, case.target, case.spacing_mm) for case in new]
    plain = fitted.model_copy(
        update={
            "structures": tuple(
                s.model_copy(update={"dice_line": DiceLine()}) for s in fitted.structures
            )
        }
    )
    true = np.array([nanmean([case.dice(s) for s in (0, 1)]) for case in cases])
    before, after = (np.array([a.dice(case).mean for case in cases]) for a in (plain, fitted))
    assert (before - true).mean() > 0.1
    assert abs((after - true).mean()) < 0.03
    assert np.abs(after - true).mean() < np.abs(before - true).mean() / 2
    assert fitted.dice_factor is not None  # the interval belongs to the corrected value
    intervals = [fitted.dice(case) for case in cases]
    assert np.mean([e.low <= t <= e.high for e, t in zip(intervals, true, strict=True)]) > 0.7
    path = tmp_path / "assurance.json"
    fitted.save(path)
    assert load_assurance(path).structures == fitted.structures
    content = json.loads(path.read_text())
    for structure in content["structures"]:
        del structure["dice_line"]  # as in files that were written before
    path.write_text(json.dumps(content))
    assert load_assurance(path).structures == plain.structures
