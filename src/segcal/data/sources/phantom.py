"""Phantoms: a generated data set whose true class probabilities are known."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from segcal.core.checks import check_int
from segcal.core.errors import PathError
from segcal.data.case import Case
from segcal.data.grid import Shape
from segcal.data.info import DatasetInfo, Description, Recipe
from segcal.data.phantom import CLASSES, INTENSITY, PhantomSpec, make_case
from segcal.data.sources.base import Source, SourceCase


@dataclass(frozen=True)
class PhantomCase(SourceCase):
    """Phantom number `index`."""

    spec: PhantomSpec
    index: int

    def shape(self) -> Shape:
        return self.spec.shape

    def load(self, info: DatasetInfo) -> Case:
        return make_case(self.spec, self.index)


class PhantomSource(Source):
    """Generated abdomens whose true class probabilities are known."""

    name = "phantom"
    description = Description(
        name="phantom", channels=("MR",), classes=CLASSES, intensity=INTENSITY
    )

    def __init__(
        self,
        *,
        dims: Annotated[int, "2 (single slices) or 3 (volumes)."] = 3,
        cases: Annotated[int, "Number of patients."] = 40,
        size: Annotated[int, "Height and width of the slices in voxels."] = 96,
        slices: Annotated[int | None, "Slices per volume; 16 by default."] = None,
        seed: Annotated[int, "Seed of the phantoms and the splits."] = 0,
        raters: Annotated[int, "Simulated readers of each patient; the label is the majority."] = 1,
    ) -> None:
        if dims == 2 and slices is not None:
            raise ValueError("Expected argument `slices` only with --dims 3, but got --dims 2.")
        self.count = check_int("cases", cases, low=1)
        self.spec = PhantomSpec(dims, size, 16 if slices is None else slices, seed, raters)

    def cases(self) -> Iterator[SourceCase | PathError]:
        for index in range(self.count):
            name = f"phantom_{index:04d}"
            yield PhantomCase(name, name, self.spec, index)

    @classmethod
    def recipes(cls) -> tuple[Recipe, ...]:
        return ("native",)

    def settings(self, info: DatasetInfo) -> dict[str, str]:
        # Without the number of cases: a set can be enlarged.
        return {key: str(value) for key, value in asdict(self.spec).items()}
