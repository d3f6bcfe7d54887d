"""Published numbers that a study prints beside its own: published.yaml."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from segcal.core.errors import PathError
from segcal.metrics import find_metric
from segcal.study import Dataset, Method, Study

SHIPPED = Path(__file__).parent / "published"
FILE = "published.yaml"


class PublishedNumbers(BaseModel):
    """Numbers of a publication.

    Attributes:
        source: the publication, as it is cited below a table.
        region: where its calibration metrics were measured.
        units: metric -> "mm" or "voxel"; a note warns if the study uses another unit.
        methods: key `paper` of a method -> source (or name) of a dataset -> metric -> value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    region: str = "all"
    units: dict[str, str] = {}
    methods: dict[str, dict[str, dict[str, float]]]

    def value(self, method: Method, dataset: Dataset, metric: str, region: str) -> float | None:
        """The published value; None without one for this method, dataset, metric and region."""
        if method.paper is None or not (find_metric(metric).whole_image or region == self.region):
            return None
        datasets = self.methods[method.paper]
        values = datasets.get(dataset.source) or datasets.get(dataset.name) or {}
        return values.get(metric, values.get(find_metric(metric).key))

    def other_unit(self, metric: str) -> str:
        """The published unit of a metric, if the study uses another one."""
        unit = self.units.get(find_metric(metric).key, "")
        return unit if unit and not metric.endswith(unit) else ""


def find_published(study: Study) -> PublishedNumbers | None:
    """What `published` of study.json names (a file of segcal or a path), else published.yaml."""
    name = study.info.published
    if name is None:
        path = study.folder / FILE
        if not path.is_file():
            return None
    else:
        path = SHIPPED / f"{name}.yaml"
        path = path if path.is_file() else study.folder / name
    if not path.is_file():
        shipped = ", ".join(sorted(each.stem for each in SHIPPED.glob("*.yaml")))
        raise PathError(
            path, "does not exist", f"correct `published` of study.json (segcal has: {shipped})"
        )
    published = _read(path)
    for method in study.info.methods:
        if method.paper is not None and method.paper not in published.methods:
            near = get_close_matches(method.paper, published.methods, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "correct its key `paper`"
            raise PathError(
                path, f"has no method {method.paper!r}, which method {method.name} names", hint
            )
    return published


def _read(path: Path) -> PublishedNumbers:
    import yaml

    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return PublishedNumbers.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise PathError(path, f"is not a YAML file ({reason})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the top level"
        raise PathError(path, f"`{where}` is invalid ({first['msg']})") from error
