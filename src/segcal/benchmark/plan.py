"""The plan of a study: datasets × methods (with grids of options) × seeds, as checked YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, model_validator

from segcal.config import (
    ConfigError,
    EvaluationConfig,
    Named,
    RegionName,
    Section,
    TrainConfig,
    Unique,
    check_config,
    check_section,
    merge,
    put_overrides,
    read_yaml,
)
from segcal.core.checks import did_you_mean
from segcal.core.text import first_few
from segcal.metrics import DEFAULT_REGION, CaseOptions, get_metric
from segcal.posthoc import CALIBRATORS, short_name
from segcal.stats import ranked_methods
from segcal.study import Hypothesis, MethodGroup, Table

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

T = TypeVar("T")
Settings = dict[str, Any]


class DatasetPlan(Section):
    """A prepared set; `train` holds settings of `segcal train` for this set alone.

    `external` has the folders of other prepared sets on which its runs are evaluated too, by name.
    """

    path: str = ""
    title: str = ""
    external: dict[str, str] = Field(default_factory=dict)
    train: Settings = Field(default_factory=dict)


class MethodPlan(Section):
    """A loss with its options, or with a `grid` of options to choose from.

    `dice_weight`, `dice_form` and `schedule` are those of the section `loss` of a config. `paper`
    names its row in the tables of the paper, `group` the table of the report, and `train` holds
    settings of `segcal train` for this method alone.
    """

    loss: str
    title: str = ""
    paper: str | None = None
    group: Literal["main", "ablation", "prior", "posthoc"] = "main"
    options: dict[str, Any] = Field(default_factory=dict)
    dice_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    dice_form: Literal["linear", "squared", "proper"] = "linear"
    schedule: Named | None = None
    train: Settings = Field(default_factory=dict)
    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)

    def candidates(self) -> Iterator[dict[str, Any]]:
        """The options of each point of the grid; without a grid, the options alone."""
        for values in product(*self.grid.values()):
            yield {**self.options, **dict(zip(self.grid, values, strict=True))}


class Plan(Section):
    """A study.

    Attributes:
        train: settings of `segcal train` for all runs.
        evaluation: settings of `segcal evaluate`.
        region, metrics: what the tables and ranks show.
        posthoc: calibrators with which each run is also evaluated; "auto" chooses one for each.
        keep: the weights to keep once a run is evaluated.
        reference: the method that the report compares with the others.
        published: published numbers to print beside the study's; see `StudyFile`.
        groups: how the report presents groups of methods.
        hypotheses: claims about two methods, each with the rule that decides it.
    """

    title: str = "Study"
    note: str = ""
    datasets: Annotated[dict[str, DatasetPlan], Field(min_length=1)]
    methods: Annotated[dict[str, MethodPlan], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), Unique] = (0,)
    train: Settings = Field(default_factory=dict)
    evaluation: EvaluationConfig = EvaluationConfig()
    region: RegionName = DEFAULT_REGION
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] = ("dsc", "hd95", "ece", "cece")
    posthoc: tuple[str, ...] = ()
    keep: Literal["all", "best", "none"] = "best"
    tables: Annotated[tuple[Table, ...], Unique] = ("main", "classes", "ablation", "priors")
    reference: str | None = None
    published: str | None = None
    groups: dict[str, MethodGroup] = Field(default_factory=dict)
    hypotheses: tuple[Hypothesis, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        named = {"datasets": [*self.datasets], "methods": [*self.methods]}
        named |= {f"datasets.{k}.external": [*d.external] for k, d in self.datasets.items()}
        for kind, names in named.items():
            for name in names:
                if not _FOLDER_NAME.fullmatch(name):
                    allowed = "names of folders, of letters, digits and . _ + -"
                    raise ValueError(f"has `{name}` in `{kind}`, which must be {allowed}")
        if self.region not in self.evaluation.regions:
            raise ValueError(f"has region {self.region}, which `evaluation.regions` leaves out")
        return self

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        options = CaseOptions(**self.evaluation.metric_options())
        rows = []
        for name in self.metrics:
            metric = _find("metrics", name, get_metric)
            base, row = metric.key, metric.row_name(options)
            rows.append(row)
            if metric.better is None:
                raise ValueError(f"`{base}` in `metrics` is descriptive and cannot be ranked")
            if ":" not in name and name not in (base, row):
                raise ValueError(
                    f"has `{name}` in `metrics`, but `evaluation` measures `{row}`; "
                    f"write `{base}`, or change `evaluation`"
                )
            if not metric.is_measured(options):
                raise ValueError(f"has `{base}` in `metrics`, which needs `evaluation.units` mm")
            if not metric.default and name not in self.evaluation.metrics:
                raise ValueError(f"has `{name}` in `metrics`; add it to `evaluation.metrics`")
            if base.startswith("truth_") and self.region != "all":
                raise ValueError(
                    f"has `{base}` in `metrics`, which is measured over all voxels: set `region` "
                    "to all"
                )
        if len(set(rows)) < len(rows):
            raise ValueError("has a value twice in `metrics`")
        return self

    @model_validator(mode="after")
    def _check_posthoc(self) -> Self:
        for name in self.posthoc:
            if name != "auto":
                _find("posthoc", name, CALIBRATORS.get)
            for calibrated in (calibrated_name(method, name) for method in self.methods):
                if calibrated in self.methods:
                    raise ValueError(f"has method `{calibrated}`, a name that `posthoc` uses")
        if len({short_name(name) for name in self.posthoc}) < len(self.posthoc):
            raise ValueError("has a calibrator twice in `posthoc`")
        if self.posthoc and self.evaluation.flips and self.evaluation.average == "probs":
            raise ValueError(
                "has `posthoc`, which needs logits: set `evaluation.average` to logits, or remove "
                "`evaluation.flips`"
            )
        return self

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        name, ranked = self.reference, ranked_methods(self.method_groups)
        if name is None or name in ranked:
            return self
        if name in self.method_groups:
            hint = f": group {self.method_groups[name]} is not ranked"
        else:
            hint = f".{did_you_mean(name, ranked)}"
        raise ValueError(f"has `{name}` in `reference`, which is none of {', '.join(ranked)}{hint}")

    @model_validator(mode="after")
    def _check_hypotheses(self) -> Self:
        for number, each in enumerate(self.hypotheses, start=1):
            where = f"has in hypothesis {number} (`{each.claim}`)"
            if get_metric(each.metric).better is None:
                raise ValueError(f"{where} the descriptive metric `{each.metric}`")
            known: dict[str, tuple[Iterable[str], Collection[str]]] = {
                "method": ([each.method, each.other], self.method_groups),
                "dataset": (each.datasets, self.datasets),
                "region": ([each.region], self.evaluation.regions),
            }
            for kind, (names, allowed) in known.items():
                for name in names:
                    if name not in allowed:
                        raise ValueError(
                            f"{where} `{name}`, which is no {kind} of the plan "
                            f"({first_few(allowed, 8)}).{did_you_mean(name, allowed)}"
                        )
        return self

    @property
    def method_groups(self) -> dict[str, str]:
        """The group of each method; calibrated methods come last."""
        calibrated = [calibrated_name(m, name) for m in self.methods for name in self.posthoc]
        groups = {name: method.group for name, method in self.methods.items()}
        return {**groups, **dict.fromkeys(calibrated, "posthoc")}

    def config(self, dataset: str, method: str, options: Settings, seed: int) -> TrainConfig:
        """The settings of one run: those of the plan, then of the dataset, then of the method."""
        where, how = self.datasets[dataset], self.methods[method]
        content: Settings = {}
        for source, part in (
            ("train", self.train),
            (f"datasets.{dataset}.train", where.train),
            (f"methods.{method}.train", how.train),
        ):
            for key in {"loss", "seed"} & set(part):
                problem = f"must not set `{key}`, which the plan's methods and seeds set"
                raise ConfigError(f"`{source}` {problem}")
            content = merge(content, part)
        content = merge(content, {"data": {"path": where.path}})
        further = how.model_dump(include={"dice_weight", "dice_form", "schedule"})
        content["loss"] = {"name": how.loss, "options": options, **further}
        content["seed"] = seed
        return check_config(content, f"train settings of `{method}` on `{dataset}`")


def _find(key: str, name: str, find: Callable[[str], T]) -> T:
    """What a registry finds under a name; an error names the key of the plan."""
    try:
        return find(name)
    except ValueError as error:
        raise ValueError(f"has `{name}` in `{key}`: {error}") from error


def row_metric(metric: str, evaluation: EvaluationConfig) -> str:
    """The name of a metric in the rows: distances with unit, surface Dice with tolerance.

    Example:
        >>> row_metric("hd95", EvaluationConfig()), row_metric("nsd", EvaluationConfig())
        ('hd95_mm', 'nsd_2mm')
    """
    return get_metric(metric).row_name(CaseOptions(**evaluation.metric_options()))


def calibrated_name(method: str, calibrator: str) -> str:
    """The name of a method with a calibrator."""
    return f"{method}+{short_name(calibrator)}"


def slug(options: Mapping[str, Any]) -> str:
    """Options as a name for a folder.

    Example:
        >>> slug({"margin": 5, "patch_size": [1, 3, 3]})
        'margin=5,patch_size=1x3x3'
    """
    parts = []
    for key, value in options.items():
        several = isinstance(value, (list, tuple))
        text = "x".join(map(str, value)) if several else str(value)
        parts.append(f"{key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', text)}")
    return ",".join(parts)


def load_plan(
    path: Path | str, *, overrides: Iterable[str] = (), data: Mapping[str, str] | None = None
) -> Plan:
    """A plan from a YAML file, then "key=value" overrides, then the folders of its datasets.

    Errors name the file and the key.
    """
    content = read_yaml(path)
    put_overrides(content, overrides)
    plan = check_section(Plan, content, str(path))
    return place_data(plan, data or {}, str(path))


def with_absolute_paths(plan: Plan) -> Plan:
    """The plan with absolute paths, which every process on every node understands."""
    placed = {}
    for name, data in plan.datasets.items():
        external = {key: str(Path(path).absolute()) for key, path in data.external.items()}
        path = str(Path(data.path).absolute()) if data.path else ""
        placed[name] = data.model_copy(update={"path": path, "external": external})
    return plan.model_copy(update={"datasets": placed})


def place_data(plan: Plan, data: Mapping[str, str], source: str = "plan") -> Plan:
    """The plan with its datasets in the given folders."""
    placed = dict(plan.datasets)
    for name, path in data.items():
        if name not in placed:
            known = ", ".join(placed)
            raise ConfigError(f"--data {name}=…: {source} has no such dataset, only {known}")
        placed[name] = placed[name].model_copy(update={"path": path})
    return plan.model_copy(update={"datasets": placed})


def to_yaml(plan: Plan) -> str:
    """The plan as YAML, for `load_plan`."""
    return yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
