"""Read and check a study folder: study.json, cases.csv and the files of its runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeVar

from segcal.core.checks import check_choice, did_you_mean
from segcal.core.documents import read_model
from segcal.core.errors import PathError
from segcal.metrics import DEFAULT_REGION, REGIONS, find_metric
from segcal.stats import ranked_methods
from segcal.study.cases_table import empty_cases_table, read_cases_table, read_cases_tables
from segcal.study.evaluation_files import CASES, EXTERNAL, file_of_split
from segcal.study.schema import Dataset, Method, Run, StudyFile
from segcal.study.writer import STUDY

if TYPE_CHECKING:
    import pandas as pd

_INCOMPLETE = "copy it again, or resume the study (`segcal benchmark PLAN --out STUDY --resume`)"
GROUPS = ("main", "ablation", "prior", "posthoc")
_Titled = TypeVar("_Titled", Dataset, Method)


@dataclass(frozen=True)
class Named:
    """A reference (the method that is compared with every other), and where it was named.

    In the plan before results existed ("plan") or afterwards ("late"), in study.json without that
    information ("study"), or for this report only ("report").
    """

    method: str
    where: Literal["plan", "late", "study", "report"]


@dataclass(frozen=True)
class Study:
    """A study as it was read. The files of its runs are opened on demand.

    Attributes:
        region: where the calibration metrics of tables and ranks are measured.
        regions: all regions in which calibration was measured.
        metrics: the metrics of the tables, as the rows name them.
        requested: a reference that replaces that of study.json.
    """

    folder: Path
    info: StudyFile
    table: "pd.DataFrame"
    region: str
    regions: tuple[str, ...]
    metrics: tuple[str, ...]
    requested: str | None = None

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Methods by name, in the order of study.json; methods that only have rows come last."""
        out = {method.name: _with_title(method) for method in self.info.methods}
        for name in map(str, self.table["method"].unique()):
            out.setdefault(name, Method(name=name, title=name))
        return out

    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """Datasets by name; datasets that only have rows come last."""
        out = {dataset.name: _with_title(dataset) for dataset in self.info.datasets}
        for name in map(str, self.table["dataset"].unique()):
            out.setdefault(name, Dataset(name=name, title=name))
        return out

    @cached_property
    def present(self) -> set[tuple[str, str]]:
        """The pairs (dataset, method) that have rows."""
        pairs = self.table[["dataset", "method"]].drop_duplicates()
        return {(str(d), str(m)) for d, m in pairs.itertuples(index=False)}

    @cached_property
    def external(self) -> dict[str, "pd.DataFrame"]:
        """Training dataset → rows of the external evaluations of its runs.

        The column `dataset` of the rows names the external set.
        """
        found: dict[str, list[Path]] = {}
        for dataset in self.info.datasets:
            for other in dataset.external:
                files = self.files(f"{EXTERNAL}/{other.name}/{CASES}")
                paths = [path for run, path in files if run.dataset == dataset.name]
                found[dataset.name] = [*found.get(dataset.name, []), *paths]
        return {name: read_cases_tables(paths) for name, paths in found.items() if paths}

    def in_group(self, *groups: str) -> list[str]:
        """Names of the methods in some groups; an unknown group counts as "main"."""
        known = {m.name: m.group if m.group in GROUPS else "main" for m in self.methods.values()}
        return [name for name, group in known.items() if group in groups]

    @property
    def compared(self) -> list[str]:
        """The methods that are ranked; see `segcal.stats.ranked_methods`."""
        return ranked_methods({name: method.group for name, method in self.methods.items()})

    @cached_property
    def named(self) -> Named | None:
        """The reference, if one was named; an unknown one raises."""
        info, name = self.info, self.requested or self.info.reference
        if name is None:
            return None
        for_report = name != info.reference
        if name not in self.compared:
            origin = "--reference" if for_report else f"`reference` of {self.folder / STUDY}"
            problem = f"is not a method of the study.{did_you_mean(name, self.compared)}"
            if name in self.methods:
                problem = f"is in group {self.methods[name].group}, which is not ranked"
            ranked = ", ".join(self.compared)
            raise ValueError(f"{origin}: {name!r} {problem}; ranked methods: {ranked}")
        if for_report:
            return Named(name, "report")
        if info.reference_late is None:
            return Named(name, "study")
        return Named(name, "late" if info.reference_late else "plan")

    @property
    def failed(self) -> list[Run]:
        """The runs that are not done."""
        return [run for run in self.info.runs if run.state != "done"]

    def files(self, name: str) -> Iterator[tuple[Run, Path]]:
        """The file `name` ("bins.npz") of each finished run that has it."""
        for run in self.info.runs:
            place = PurePosixPath(run.folder)
            if run.state != "done" or not run.folder:
                continue
            if place.is_absolute() or ".." in place.parts:
                problem = f"the folder of run {run.run!r} is outside the study ({run.folder})"
                raise PathError(self.folder / STUDY, problem)
            path = file_of_split(self.folder / place, name, self.info.split)
            if path.is_file():
                yield run, path


def read_study(folder: Path, region: str | None = None, reference: str | None = None) -> Study:
    """Read the study in a folder; `region` and `reference` override those of study.json."""
    path = folder / STUDY
    if not folder.is_dir():
        raise PathError(folder, "does not exist", "check the path")
    if not path.is_file():
        remedy = "give a folder that `segcal benchmark`, `segcal demo` or `segcal audit` wrote"
        raise PathError(folder, f"is not a study: it has no {STUDY}", remedy)
    info = read_study_file(path)
    packed = folder / f"{CASES}.xz"  # published studies
    table = _read_table(packed if packed.is_file() else folder / CASES, info.table_bytes)
    _check_runs(info, table, folder)
    measured = set(table.loc[table["metric"] == "ece", "region"])
    regions = tuple(name for name in REGIONS if name in measured)
    wanted = region if region is not None else info.region
    if region is not None and regions:
        check_choice("--region", wanted, regions)
    elif regions and wanted not in regions:
        problem = f"`region` is {wanted!r}, but calibration was measured in {', '.join(regions)}"
        raise PathError(path, problem, "correct it, or pass --region")
    metrics = _row_metrics(info.metrics, set(table["metric"]))
    study = Study(folder, info, table, wanted, regions, metrics, reference)
    _ = study.named  # An invalid reference raises here.
    return study


def read_study_file(path: Path) -> StudyFile:
    """The content of study.json."""
    return read_model(path, StudyFile, "the description of a study")


def region_beside(tables: Iterable[Path]) -> str:
    """The region of the study in whose folder the tables lie; without one, that of all voxels."""
    studies = [path.with_name(STUDY) for path in tables]
    regions = {read_study_file(path).region for path in studies if path.is_file()}
    if len(regions) > 1:
        raise ValueError(
            f"the studies are about regions {', '.join(sorted(regions))}; set --region"
        )
    return next(iter(regions), DEFAULT_REGION)


def _read_table(path: Path, limit: int | None) -> "pd.DataFrame":
    """The long table; rows after `limit` bytes are of a run that was being added at the end."""
    if not path.is_file() or path.stat().st_size == 0 or limit == 0:
        return empty_cases_table()
    try:
        return read_cases_table(path, limit=limit)
    except PathError as error:
        raise PathError(error.path, error.problem, error.remedy or _INCOMPLETE) from error


def _check_runs(info: StudyFile, table: "pd.DataFrame", folder: Path) -> None:
    """A finished run without rows: cases.csv is incomplete, or belongs to another state."""
    named = set(table["run"].unique())
    keys = table[["dataset", "method", "seed"]].drop_duplicates()
    present = set(keys.astype(str).itertuples(index=False, name=None))
    for run in info.runs:
        known = run.run in named or (run.dataset, run.method, str(run.seed)) in present
        if run.state == "done" and not known:
            problem = f"has no rows of run {run.run!r}, which is done according to {STUDY}"
            raise PathError(folder / CASES, problem, _INCOMPLETE)


def _with_title(part: _Titled) -> _Titled:
    return part if part.title else part.model_copy(update={"title": part.name})


def _row_metrics(metrics: tuple[str, ...], present: set[str]) -> tuple[str, ...]:
    """The metrics as the rows name them ("hd95" → "hd95_voxel"); absent ones are left out."""
    out: list[str] = []
    for metric in metrics:
        key = find_metric(metric).key
        same = [name for name in sorted(present) if find_metric(name).key == key]
        found = metric if metric in present else (same[0] if same else None)
        if found is not None and found not in out:
            out.append(found)
    return tuple(out)
