"""Reorientation without interpolation, compared with nibabel; orientation of a data set."""

import itertools
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.trees import blob, folder_tree, oblique, save, scan
from segcal.data import FolderSource, Scan, open_dataset, prepare, scan_grids, training_space
from segcal.data.formats import read_image
from segcal.data.grid import GridRecipe, plan_grid
from segcal.data.orientation import axis_codes, grid_orientation, reorient

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
            file_grid, grid = scan_grids(header, GridRecipe(), wanted)
            turned = reorient(image, codes, wanted)
            np.testing.assert_array_equal(turned[0].T, np.asarray(expected.dataobj))
            np.testing.assert_allclose(grid.affine, expected.affine, atol=1e-5)
            assert grid.original_shape == turned.shape[1:]
            spacing = expected.header.get_zooms()[::-1]
            np.testing.assert_allclose(grid.original_spacing_mm, spacing, rtol=1e-5)
            scan_back = Scan(turned, grid, file_grid)
            np.testing.assert_array_equal(scan_back.to_file_order(turned), image)
            np.testing.assert_array_equal(scan_back.to_file_order(turned[0]), image[0])
            assert file_grid.original_shape == header.shape


@pytest.mark.parametrize("codes", ALL)
def test_reorienting_to_ras_is_as_closest_canonical(codes: str) -> None:
    """All flips and permutations, with values that tell every voxel apart."""
    array = np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4)
    affine = np.eye(4)
    for axis, code in enumerate(codes):
        world = next(i for i, pair in enumerate(AXES) if code in pair)
        affine[:3, axis] = np.eye(3)[world] * (1 if code in "RAS" else -1)
    image = nib.Nifti1Image(array, affine)
    assert axis_codes(image.affine) == codes
    expected = np.asarray(nib.as_closest_canonical(image).dataobj)
    turned = reorient(array.T, codes, "RAS")
    np.testing.assert_array_equal(turned.T, expected)
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(reorient(turned, "RAS", codes), array.T)


def test_orientation_and_spacing_of_a_set(tmp_path: Path) -> None:
    source = folder_tree(tmp_path / "source")
    affine = np.diag([-1.0, 1.0, 3.0, 1.0])
    for folder, array in (("images", scan((20, 24, 6), 9)), ("labels", blob((20, 24, 6), (1,)))):
        save(source / folder / "fall 1.nii.gz", array, affine)
    prepare(FolderSource(source, spacing="native"), tmp_path / "out", workers=1)
    space = training_space(case.grid for case in open_dataset(tmp_path / "out"))
    assert space["orientations"] == {"RAS": 2, "LAS": 1}
    assert space["spacing_mm"] == ((1.0, 3.0), (1.0, 1.0), (1.0, 1.0))


@pytest.mark.parametrize(("spacing", "expected"), [(1.0, "LPS"), (1.01, "LPS"), (1.5, "unknown")])
def test_orientation_of_a_placeholder_is_unknown(spacing: float, expected: str) -> None:
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    grid = plan_grid((3, 4, 5), (spacing, spacing, spacing), affine, GridRecipe())
    assert grid_orientation(grid) == expected
