"""What a study is told: datasets × methods (with grids of options) × seeds, as checked YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from segcal.config import (
    ConfigError,
    EvaluationConfig,
    Section,
    TrainConfig,
    check_config,
    check_section,
    put_overrides,
    read_yaml,
)
from segcal.evaluation import AFTER_TRAINING
from segcal.metrics import CaseOptions, get_metric
from segcal.stats import ranked_methods

_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Said by the plan itself, method by method and seed by seed.
_OWN = ("loss", "seed")

Settings = dict[str, Any]
Table = Literal["main", "classes", "ablation", "priors"]
Keep = Literal["all", "best", "none"]


class DatasetPlan(Section):
    """A prepared set; `train` holds settings of `segcal train` for this set alone."""

    path: str = ""
    title: str = ""
    train: Settings = Field(default_factory=dict)


class MethodPlan(Section):
    """A loss with its options, or with a `grid` of options to choose from.

    `paper` is the row of the paper's tables it stands for, `group` the table it belongs to, and
    `train` holds settings of `segcal train` for this method alone.
    """

    loss: str
    title: str = ""
    paper: str | None = None
    group: Literal["main", "ablation", "prior", "posthoc"] = "main"
    options: dict[str, Any] = Field(default_factory=dict)
    dice_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    train: Settings = Field(default_factory=dict)
    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)

    def candidates(self) -> Iterator[dict[str, Any]]:
        """The options of each point of the grid; without a grid, the options alone."""
        for values in product(*self.grid.values()):
            yield {**self.options, **dict(zip(self.grid, values, strict=True))}


class Plan(Section):
    """A study. `train` holds settings of `segcal train` for all runs, `evaluation` those of
    `segcal evaluate`; `region` and `metrics` are what the tables and ranks show. `posthoc` names
    the calibrators that each run is also evaluated with, and `keep` the weights that stay then.
    `reference` is the method that the study is about: the report compares it with the others."""

    title: str = "Study"
    note: str = ""
    datasets: Annotated[dict[str, DatasetPlan], Field(min_length=1)]
    methods: Annotated[dict[str, MethodPlan], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0,)
    train: Settings = Field(default_factory=dict)
    evaluation: EvaluationConfig = EvaluationConfig()
    region: Literal["foreground", "all", "union", "boundary"] = "foreground"
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] = ("dsc", "hd95", "ece", "cece")
    posthoc: tuple[str, ...] = ()
    keep: Keep = "best"
    tables: tuple[Table, ...] = ("main", "classes", "ablation", "priors")
    reference: str | None = None

    @model_validator(mode="after")
    def _names_are_folders(self) -> Self:
        for kind, names in (("datasets", self.datasets), ("methods", self.methods)):
            for name in names:
                if not _SLUG.fullmatch(name):
                    raise ValueError(
                        f"has `{name}` in `{kind}`, which is no name for a folder "
                        "(letters, digits, and . _ + -)"
                    )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("has a seed twice in `seeds`")
        if self.region not in self.evaluation.regions:
            raise ValueError(f"has region {self.region}, which `evaluation.regions` leaves out")
        return self

    @model_validator(mode="after")
    def _metrics_are_measured(self) -> Self:
        options = CaseOptions(**self.evaluation.metric_options())
        rows = [row_metric(name, self.evaluation) for name in self.metrics]
        for name, row in zip(self.metrics, rows, strict=True):
            metric = get_metric(name)
            base = metric.key
            if metric.better is None:
                raise ValueError(f"has `{base}` in `metrics`, which is descriptive: not rankable")
            if ":" not in name and name not in (base, row):
                raise ValueError(
                    f"has `{name}` in `metrics`, but `evaluation` measures `{row}`; "
                    f"say `{base}`, or change `evaluation`"
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
        for key, values in (("metrics", rows), ("tables", self.tables)):
            if len(set(values)) < len(values):
                raise ValueError(f"has a value twice in `{key}`")
        return self

    @model_validator(mode="after")
    def _can_be_calibrated(self) -> Self:
        for name in self.posthoc:
            if name not in AFTER_TRAINING:
                near = get_close_matches(name, AFTER_TRAINING, n=1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise ValueError(
                    f"has `{name}` in `posthoc`, which is none of {', '.join(AFTER_TRAINING)}{hint}"
                )
            for method in self.methods:
                if calibrated_name(method, name) in self.methods:
                    raise ValueError(
                        f"has method `{calibrated_name(method, name)}`, which `posthoc` makes too"
                    )
        if len(set(self.posthoc)) < len(self.posthoc):
            raise ValueError("has a calibrator twice in `posthoc`")
        if self.posthoc and self.evaluation.flips and self.evaluation.average == "probs":
            raise ValueError(
                "has `posthoc`, which needs logits: set `evaluation.average` to logits, or leave "
                "`evaluation.flips` out"
            )
        return self

    @model_validator(mode="after")
    def _reference_is_ranked(self) -> Self:
        name, ranked = self.reference, ranked_methods(self.groups)
        if name is None or name in ranked:
            return self
        if name in self.groups:
            raise ValueError(
                f"has `reference` {name}, which is of group {self.groups[name]} and so not ranked; "
                f"name one of {', '.join(ranked)}"
            )
        near = get_close_matches(name, ranked, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise ValueError(
            f"has `reference` {name}, which is none of its methods ({', '.join(ranked)}){hint}"
        )

    @property
    def groups(self) -> dict[str, str]:
        """The group of each method; those that calibrators make of them come last."""
        after = [calibrated_name(m, name) for m in self.methods for name in self.posthoc]
        return {**{n: m.group for n, m in self.methods.items()}, **dict.fromkeys(after, "posthoc")}

    def config(self, dataset: str, method: str, options: Settings, seed: int) -> TrainConfig:
        """What one run is told: settings of the plan, then the dataset, then the method."""
        where, how = self.datasets[dataset], self.methods[method]
        content: Settings = {}
        for source, part in (
            ("train", self.train),
            (f"datasets.{dataset}.train", where.train),
            (f"methods.{method}.train", how.train),
        ):
            for key in _OWN:
                if key in part:
                    raise ConfigError(
                        f"Expected `{source}` to leave `{key}` to the plan's methods and seeds."
                    )
            content = merge(content, part)
        content = merge(content, {"data": {"path": where.path}})
        content["loss"] = {"name": how.loss, "options": options, "dice_weight": how.dice_weight}
        content["seed"] = seed
        return check_config(content, f"train settings of `{method}` on `{dataset}`")


def row_metric(metric: str, evaluation: EvaluationConfig) -> str:
    """What rows call a metric: distances with their unit, surface Dice with its tolerance.

    Example:
        >>> row_metric("hd95", EvaluationConfig()), row_metric("nsd", EvaluationConfig())
        ('hd95_mm', 'nsd_2mm')
    """
    return get_metric(metric).row_name(CaseOptions(**evaluation.metric_options()))


def calibrated_name(method: str, calibrator: str) -> str:
    """What a method is called once a calibrator was fitted to it."""
    return f"{method}+{calibrator}"


def merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """`more` over `base`, section by section."""
    out = dict(base)
    for key, value in more.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out


def slug(options: Mapping[str, Any]) -> str:
    """Options as a name for a folder.

    Example:
        >>> slug({"margin": 5, "patch_size": [1, 3, 3]})
        'margin=5,patch_size=1x3x3'
    """
    words = []
    for key, value in options.items():
        many = isinstance(value, (list, tuple))
        text = "x".join(map(str, value)) if many else str(value)
        words.append(f"{key}={re.sub(r'[^A-Za-z0-9.+-]+', '_', text)}")
    return ",".join(words)


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


def at_home(plan: Plan) -> Plan:
    """The plan with whole paths, which mean the same to every process, here and on other nodes."""
    return place_data(
        plan, {n: str(Path(d.path).absolute()) for n, d in plan.datasets.items() if d.path}
    )


def place_data(plan: Plan, data: Mapping[str, str], source: str = "plan") -> Plan:
    """The plan with its datasets in those folders; every dataset must have one then."""
    for name in data:
        if name not in plan.datasets:
            raise ConfigError(
                f"Expected argument `--data` to name a dataset of {source} "
                f"({', '.join(plan.datasets)}), but got {name!r}."
            )
    placed = {
        name: where.model_copy(update={"path": data.get(name, where.path)})
        for name, where in plan.datasets.items()
    }
    return plan.model_copy(update={"datasets": placed})


def to_yaml(plan: Plan) -> str:
    """The plan as YAML, to be read again."""
    return yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
