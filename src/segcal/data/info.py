"""The description of a data set: what its source declares, then what is stored of it."""

from typing import Any, Literal

from pydantic import BaseModel

from segcal.data.grid import GridRecipe
from segcal.data.intensity import Intensity

Dtype = Literal["float16", "uint8"]
Recipe = Literal["paper", "padded", "native"]


class Description(BaseModel, frozen=True, extra="forbid"):
    """What a source knows about its data set before any voxel is read.

    Attributes:
        name: name of the data set.
        channels: names of the image channels, in order.
        classes: name of every stored label; empty if the labels that occur decide.
        regions: unions of labels that are scored as one.
        label_map: label in the files → stored label; None if labels are stored unchanged.
        intensity: how images are normalized.
        split_counts: patients in train, val and test; other totals use these proportions.
    """

    name: str
    channels: tuple[str, ...]
    classes: dict[int, str] = {}
    regions: dict[str, tuple[int, ...]] = {}
    label_map: dict[int, int] | None = None
    intensity: Intensity = Intensity()
    split_counts: tuple[int, int, int] = (70, 10, 20)

    @property
    def file_labels(self) -> tuple[int, ...] | None:
        """The labels that the files may hold; None if any of 0 to 255."""
        return tuple(sorted(self.label_map or self.classes)) or None


class DatasetInfo(Description, frozen=True):
    """`dataset.yaml`: the description, and how the set was prepared.

    The file is written last, so its presence means that the set is complete. `fingerprint`
    changes whenever a stored voxel, label, property or setting changes; splits do not count.
    `origin` makes the source again, to read the original scans; see `Source.origin`.
    """

    version: Literal[2] = 2
    source: str
    recipe: str
    dtype: Dtype
    grid: GridRecipe
    has_truth: bool = False
    cases: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    origin: dict[str, Any] = {}
    fingerprint: str = ""

    def meaning(self) -> dict[str, Any]:
        """The fields that say what the stored arrays mean: those that the fingerprint covers."""
        other = {"name", "cases", "skipped", "versions", "origin", "fingerprint"}
        # Every case stores the label map; the split counts decide splits.json only.
        content = self.model_dump(mode="json", exclude=other | {"label_map", "split_counts"})
        # Published fingerprints call every default recipe `paper`; `grid` tells them apart.
        return content | ({"recipe": "paper"} if self.recipe == "padded" else {})
