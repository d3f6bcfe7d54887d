"""Turning volumes without interpolation, and what a set says of its orientation."""

import itertools
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.trees import blob, folder_tree, oblique, save, scan
from segcal.data import open_dataset, plan_source, prepare, training_space
from segcal.data.formats.nifti import read_image
from segcal.data.grid import GridRecipe, plan_grid
from segcal.data.inference_input import place_raw
from segcal.data.orientation import axis_codes, orientation, plan_turn

AXES = ("RL", "AP", "SI")
ALL = [
    "".join(codes) for order in itertools.permutations(AXES) for codes in itertools.product(*order)
]


def test_all_48_orientations_against_nibabel(tmp_path: Path) -> None:
    turns = nib.orientations
    start = nib.Nifti1Image(scan((5, 7, 3), 0), oblique((1.0, 1.5, 4.0)))
    assert len(set(ALL)) == 48
    for codes in ALL:
        here = turns.io_orientation(start.affine)
        stored = start.as_reoriented(turns.ornt_transform(here, turns.axcodes2ornt(codes)))
        nib.save(stored, tmp_path / "x.nii")
        image, header = read_image(tmp_path / "x.nii")
        assert axis_codes(header.affine) == codes
        for wanted in ("RAS", "LPS", "SAR"):
            change = turns.ornt_transform(turns.axcodes2ornt(codes), turns.axcodes2ornt(wanted))
            expected = stored.as_reoriented(change)
            file_grid, grid, turn = place_raw(header, GridRecipe(), wanted)
            turned = turn.apply(image)
            np.testing.assert_array_equal(turned[0].T, np.asarray(expected.dataobj))
            np.testing.assert_allclose(grid.affine, expected.affine, atol=1e-5)
            assert grid.original_shape == turned.shape[1:]
            spacing = expected.header.get_zooms()[::-1]
            np.testing.assert_allclose(grid.original_spacing_mm, spacing, rtol=1e-5)
            np.testing.assert_array_equal(turn.undo(turned), image)
            np.testing.assert_array_equal(turn.undo(turned[0]), image[0])
            assert file_grid.original_shape == header.shape
    assert plan_turn("PIR", "PIR").order == (0, 1, 2)


def test_what_a_set_says(tmp_path: Path) -> None:
    source = folder_tree(tmp_path / "source")
    affine = np.diag([-1.0, 1.0, 3.0, 1.0])
    for folder, array in (("images", scan((20, 24, 6), 9)), ("labels", blob((20, 24, 6), (1,)))):
        save(source / folder / "fall 1.nii.gz", array, affine)
    prepare(plan_source("folder", source), tmp_path / "out", workers=1)
    space = training_space(case.grid for case in open_dataset(tmp_path / "out"))
    assert space.orientations == {"RAS": 2, "LAS": 1}
    assert space.spacing_mm == ((1.0, 3.0), (1.0, 1.0), (1.0, 1.0))


@pytest.mark.parametrize(("spacing", "expected"), [(1.0, "LPS"), (1.01, "LPS"), (1.5, "unknown")])
def test_placeholders(spacing: float, expected: str) -> None:
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    grid = plan_grid((3, 4, 5), (spacing, spacing, spacing), affine, GridRecipe())
    assert orientation(grid) == expected
