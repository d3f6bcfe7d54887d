"""Published numbers that a study prints beside its own: published.yaml."""

from pathlib import Path

from pydantic import Field

from segcal.config import Section, check_section, read_yaml
from segcal.core.checks import did_you_mean
from segcal.core.errors import PathError
from segcal.metrics import find_metric
from segcal.study import Dataset, Method, Study

SHIPPED = Path(__file__).parent / "published"


class PublishedNumbers(Section):
    """Numbers of a publication.

    Attributes:
        source: the publication, as it is cited below a table.
        region: where its calibration metrics were measured.
        units: metric -> "mm" or "voxel"; a note warns if the study uses another unit.
        methods: key `paper` of a method -> source (or name) of a dataset -> metric -> value.
    """

    source: str
    region: str = "all"
    units: dict[str, str] = Field(default_factory=dict)
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
    path = study.folder / (name or "published.yaml")
    shipped = {each.stem: each for each in sorted(SHIPPED.glob("*.yaml"))}
    if name is not None:
        path = shipped.get(name, path)
    elif not path.is_file():
        return None
    if not path.is_file():
        remedy = f"correct `published` of study.json (segcal has: {', '.join(shipped)})"
        raise PathError(path, "does not exist", remedy)
    published = check_section(PublishedNumbers, read_yaml(path), str(path))
    for method in study.info.methods:
        if method.paper is not None and method.paper not in published.methods:
            problem = f"has no method {method.paper!r}, which method {method.name} names"
            hint = did_you_mean(method.paper, published.methods)
            raise PathError(path, problem, f"correct its key `paper`.{hint}")
    return published
