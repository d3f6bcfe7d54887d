"""Phantoms: a generated data set whose true class probabilities are known."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from segcal.core.errors import PathError
from segcal.data.case import Case
from segcal.data.grid import Shape
from segcal.data.info import DatasetInfo, Description, Recipe
from segcal.data.phantom import CLASSES, INTENSITY, PhantomSpec, make_case
from segcal.data.sources.base import Source, SourceCase

DEFAULT_SLICES = 16


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
    """Generated abdomens; `seed` changes every phantom, `cases` only how many there are."""

    name = "phantom"
    summary = "Generated abdomens whose true class probabilities are known."
    description = Description(
        name="phantom", channels=("MR",), classes=CLASSES, intensity=INTENSITY
    )

    def __init__(
        self,
        *,
        dims: Annotated[int, "2 (single slices) or 3 (volumes)."] = 3,
        cases: Annotated[int, "Number of patients."] = 40,
        size: Annotated[int, "Height and width of the slices in voxels."] = 96,
        slices: Annotated[int | None, f"Slices per volume; {DEFAULT_SLICES} by default."] = None,
        seed: Annotated[int, "Seed of the phantoms and the splits."] = 0,
    ) -> None:
        if dims == 2 and slices is not None:
            raise ValueError("Expected argument `slices` only with --dims 3, but got --dims 2.")
        depth = DEFAULT_SLICES if slices is None else slices
        self.spec = PhantomSpec(dims=dims, cases=cases, size=size, slices=depth, seed=seed)

    def cases(self) -> Iterator[SourceCase | PathError]:
        for index in range(self.spec.cases):
            name = f"phantom_{index:04d}"
            yield PhantomCase(name, name, self.spec, index)

    @classmethod
    def recipes(cls) -> tuple[Recipe, ...]:
        return ("native",)

    def settings(self, info: DatasetInfo) -> dict[str, str]:
        # The number of cases changes none of them, so a set can be enlarged.
        return {key: str(value) for key, value in asdict(self.spec).items() if key != "cases"}
