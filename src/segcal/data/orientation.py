"""Where a file's axes point, and turning volumes so that they point elsewhere. No interpolation."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from segcal.data.grid import Grid, Shape, Spacing

UNKNOWN = "unknown"
_OPPOSITE = {"R": "L", "L": "R", "A": "P", "P": "A", "S": "I", "I": "S"}
Range = tuple[float, float]


class TrainingSpace(BaseModel):
    """Of the cases that a network was trained on, as its `run.json` keeps it.

    `orientations` counts the cases by where the axes (x, y, z) of their files point, as "RAS";
    "unknown" are files with a placeholder for an affine. `spacing_mm` has the smallest and the
    largest spacing of the stored grids, axes (Z, Y, X).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    orientations: dict[str, int]
    spacing_mm: tuple[Range, Range, Range]


def training_space(grids: Iterable[Grid]) -> TrainingSpace:
    """The orientations and the range of spacing of these cases."""
    known = list(grids)
    spacing = np.array([grid.spacing_mm for grid in known])
    pairs = zip(spacing.min(0).tolist(), spacing.max(0).tolist(), strict=True)
    counts = Counter(orientation(grid) for grid in known)
    return TrainingSpace.model_validate(
        {"orientations": dict(counts.most_common()), "spacing_mm": tuple(pairs)}
    )


def axis_codes(affine: Any) -> str:
    """Where the axes (x, y, z) of a file with this affine point.

    Example:
        >>> axis_codes(np.diag([-2.0, -2.0, 5.0, 1.0]))
        'LPS'
    """
    return "".join(nib.aff2axcodes(np.asarray(affine)))  # type: ignore[no-untyped-call]


def orientation(grid: Grid) -> str:
    """Axis codes of a case's source file; "unknown" if its affine is a placeholder.

    Such an affine has steps of 1 beside the true spacing in pixdim (ACDC is distributed so):
    somebody wrote it without looking at the patient.
    """
    steps = np.sqrt((np.array(grid.affine)[:3, :3] ** 2).sum(axis=0))
    if not np.allclose(steps, grid.original_spacing_mm[::-1], rtol=0.02):
        return UNKNOWN
    return axis_codes(grid.affine)


@dataclass(frozen=True)
class Turn:
    """New axis i of (Z, Y, X) is the old axis `order[i]`, read backwards if `flipped[i]`."""

    order: Shape = (0, 1, 2)
    flipped: tuple[bool, bool, bool] = (False, False, False)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """(…, Z, Y, X) turned. Contiguous: sums over it do not depend on how the file lay."""
        lead = array.ndim - 3
        moved = array.transpose(*range(lead), *(lead + axis for axis in self.order))
        return np.ascontiguousarray(np.flip(moved, self._backwards(lead)))

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """(…, Z, Y, X) turned back: `undo(apply(array))` is `array`."""
        lead = array.ndim - 3
        back = np.flip(array, self._backwards(lead))
        order = (lead + int(axis) for axis in np.argsort(self.order))
        return np.ascontiguousarray(back.transpose(*range(lead), *order))

    def spacing(self, spacing_mm: Spacing) -> Spacing:
        z, y, x = (spacing_mm[axis] for axis in self.order)
        return z, y, x

    def shape(self, shape: Shape) -> Shape:
        z, y, x = (shape[axis] for axis in self.order)
        return z, y, x

    def affine(self, affine: NDArray[np.float64], shape: Shape) -> NDArray[np.float64]:
        """The turned volume's affine, of a file with this affine and shape (Z, Y, X)."""
        steps = np.zeros((4, 4))
        steps[3, 3] = 1
        # Affines count their axes (x, y, z).
        for new, (old, back) in enumerate(zip(self.order, self.flipped, strict=True)):
            steps[2 - old, 2 - new] = -1 if back else 1
            steps[2 - old, 3] = shape[old] - 1 if back else 0
        turned: NDArray[np.float64] = np.asarray(affine) @ steps
        return turned

    def _backwards(self, lead: int) -> tuple[int, ...]:
        return tuple(lead + axis for axis, back in enumerate(self.flipped) if back)


def plan_turn(codes: str, wanted: str) -> Turn:
    """The turn of a volume whose file has axis codes `codes` that gives it codes `wanted`.

    Example:
        >>> plan_turn("LPS", "RAS")
        Turn(order=(0, 1, 2), flipped=(False, True, True))
    """
    have = codes[::-1]
    places = []
    for code in wanted[::-1]:
        place = have.find(code)
        places.append(have.find(_OPPOSITE[code]) if place < 0 else place)
    z, y, x = places
    back = [have[place] != code for place, code in zip(places, wanted[::-1], strict=True)]
    return Turn((z, y, x), (back[0], back[1], back[2]))
