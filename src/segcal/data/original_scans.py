"""The cases of a prepared set as their source files hold them."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import write_folder
from segcal.data.case import Case, SourceFile
from segcal.data.dataset import PreparedCase, PreparedDataset
from segcal.data.grid import GridRecipe
from segcal.data.info import DatasetInfo, Dtype
from segcal.data.intensity import Intensity
from segcal.data.orientation import axis_codes, reorient, turned_grid
from segcal.data.preparation import load_case
from segcal.data.sources import SOURCES
from segcal.data.sources.base import SourceCase
from segcal.data.store import pack_case
from segcal.data.survey import find_cases

_REMEDY = "prepare the set again from its source files"


@dataclass(frozen=True)
class OriginalScans:
    """Reads the cases of a prepared set again, from unchanged source files."""

    dataset: PreparedDataset

    @cached_property
    def _found(self) -> tuple[dict[str, SourceCase], dict[str, tuple[SourceFile, ...]]]:
        root, origin = self.dataset.root, self.dataset.info.origin
        if not origin:
            raise PathError(root, "does not record which files it was prepared from", _REMEDY)
        try:
            cases, files, _ = find_cases(SOURCES.get(origin["source"])(**origin["arguments"]))
        except (ValueError, TypeError) as error:
            raise PathError(root, f"cannot be read again ({error})", _REMEDY) from error
        return cases, files

    def read(self, name: str, intensity: Intensity) -> Case:
        """A case on its original grid, with its labels and this normalization."""
        cases, files = self._found
        if files.get(name) != self.dataset[name].properties.sources:
            problem = f"the source files of case {name} are missing or were modified"
            raise PathError(self.dataset.root, problem, _REMEDY)
        changes = {"grid": GridRecipe(), "intensity": intensity}
        return load_case(cases[name], self.dataset.info.model_copy(update=changes))


def check_fits(dataset: PreparedDataset, trained: DatasetInfo, source: Path) -> None:
    """Refuse a set with other classes or channels than those that a network was trained on.

    A single channel may have any name. `trained` describes the training set, which errors call
    `source`.
    """
    for what in ("classes", "channels"):
        ours, theirs = (_names(info, what) for info in (trained, dataset.info))
        single = what == "channels" and len(ours) == len(theirs) == 1
        if not single and [n.casefold() for n in ours] != [n.casefold() for n in theirs]:
            problem = f"has the {what} {', '.join(theirs)}, but {source} has {', '.join(ours)}"
            raise PathError(dataset.root, problem, f"prepare it with the same {what}")


def _names(info: DatasetInfo, what: str) -> list[str]:
    return [*info.channels] if what == "channels" else [n for _, n in sorted(info.classes.items())]


def place(case: Case, recipe: GridRecipe, target: str | None = None) -> Case:
    """A case on its original grid, turned to the axis codes `target` and stored by `recipe`."""
    grid = turned_grid(case.grid, recipe, target)
    codes = axis_codes(case.grid.affine), axis_codes(grid.affine)

    def stored(label: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return grid.apply_labels(np.asarray(reorient(label, *codes)))

    # Known probabilities are of generated cases, whose grid stays.
    truth = case.truth if case.truth is not None and case.truth.shape[1:] == grid.shape else None
    return replace(
        case,
        image=grid.apply_image(reorient(case.image, *codes)),
        label=stored(case.label),
        raters={name: stored(drawn) for name, drawn in case.raters.items()},
        grid=grid,
        truth=truth,
    )


def write_case(case: Case, folder: Path, dtype: Dtype) -> PreparedCase:
    """Store a case below `folder`, as in a prepared set."""
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder / case.name, pack_case(case, dtype, {})[1])
    return PreparedCase(folder / case.name)
