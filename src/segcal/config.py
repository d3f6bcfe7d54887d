"""Settings of training and evaluation: validated sections, read from and written to YAML.

An unknown key is an error that names the nearest one. Names of losses, networks and transforms are
checked where they are built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic import model_validator as _model_validator

from segcal.core.checks import did_you_mean
from segcal.core.documents import invalid_key, parse_yaml


def _check_unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("has a value twice")
    return values


Unique = AfterValidator(_check_unique)
Positive = Annotated[int, Field(ge=1)]
# The keys of `segcal.metrics.REGIONS`, in the same order.
RegionName = Literal["predicted", "predicted_boundary", "foreground", "all", "union", "boundary"]


# Keywords of `segcal.training.train` for a section of another name.
_SYNONYMS = {"network": "model"}


class ConfigError(ValueError):
    """An invalid setting; one line that names the file or the key."""


class Section(BaseModel):
    """A group of settings; immutable, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @_model_validator(mode="before")
    @classmethod
    def _check_keys(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        known = list(cls.model_fields)
        for key in content:
            if key not in known:
                hint = did_you_mean(_SYNONYMS.get(key, key), known)
                raise ValueError(f"has no key `{key}` (it has {', '.join(known)}).{hint}")
        return content


S = TypeVar("S", bound=Section)


class DataConfig(Section):
    """The training data.

    `size` crops or pads slices of different sizes (2d); `patch_size`, `per_case` and `foreground`
    are arguments of `PatchDataset` (3d). `loader` "resident" keeps all slices in memory. `raters`
    is the target where several readers labeled each case: the majority, one reader drawn for each
    item, or the mean, which is a soft target. `heads` are regions that may overlap, name → labels:
    the network then has one sigmoid output for each, and the loss `activation: sigmoid`. If only
    the latter is set, `heads` are the regions of the data set, or else its classes.
    """

    path: str = ""
    mode: Literal["2d", "3d"] = "2d"
    fold: Annotated[int, Field(ge=0)] | None = None
    size: tuple[Positive, Positive] | None = None
    patch_size: tuple[Positive, Positive, Positive] | None = None
    per_case: Positive = 4
    foreground: Annotated[float, Field(ge=0, le=1)] = 0.5
    loader: Literal["auto", "resident", "stream"] = "auto"
    workers: Annotated[int, Field(ge=0)] = 0
    raters: Literal["majority", "random", "mean"] = "majority"
    heads: dict[str, tuple[Positive, ...]] = {}

    @_model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "2d" and self.patch_size is not None:
            raise ValueError("takes `patch_size` only when `mode` is 3d; slices have `size`")
        if self.mode == "3d" and (self.size is not None or self.loader == "resident"):
            raise ValueError("takes `size` and `loader: resident` only when `mode` is 2d")
        if self.heads and self.raters == "mean":
            raise ValueError("takes `raters: mean` only without `heads`; use majority or random")
        return self


class Named(Section):
    """A name and options: a schedule or a transform."""

    name: str
    options: dict[str, Any] = {}


class LossConfig(Section):
    """A loss: a name in `segcal.losses.LOSSES`, or the import path `package.module:Class`.

    `options` are arguments of its constructor. `dice_weight` adds soft Dice of the form `dice_form`
    (see `segcal.losses.DiceLoss`), `schedule` changes the penalty weight over the epochs.
    `instance` is set if a loss object was passed to `train`; `name` is then its class.
    """

    name: str = "nacl"
    options: dict[str, Any] = {}
    instance: bool = False
    dice_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    dice_form: Literal["linear", "squared", "proper"] = "linear"
    schedule: Named | None = None


class ModelConfig(Section):
    """A network by name or import path, with its options; see `segcal.models.NetworkSpec`."""

    name: str = "unet"
    options: dict[str, Any] = {}
    divisible_by: Positive | None = None


class OptimizerConfig(Section):
    """Optimizer and learning rate.

    `lr` rises linearly over the first `warmup` epochs. Then, by `decay`: "step" multiplies it by
    `factor` at each of `milestones`; "cosine" and "poly" lower it to 0 at the last epoch.
    """

    name: str = "adam"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["step", "cosine", "poly"] = "step"
    milestones: tuple[Annotated[int, Field(ge=0)], ...] = (50,)
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    options: dict[str, Any] = {}

    def lr_at(self, epoch: int, epochs: int) -> float:
        """The learning rate in an epoch out of `epochs`; they count from 0."""
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / (self.warmup + 1)
        left = 1 - (epoch - self.warmup) / max(epochs - self.warmup, 1)
        if self.decay == "cosine":
            return self.lr * (1 - math.cos(math.pi * left)) / 2
        if self.decay == "poly":
            return self.lr * float(left**0.9)
        return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)


def _switch(value: Any) -> Any:
    """YAML reads an unquoted on or off as a boolean."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Precision = Annotated[
    Literal["auto", "32", "tf32", "bf16-mixed"],
    BeforeValidator(lambda value: "32" if value == 32 else value),
]


class TrainConfig(Section):
    """All settings of a training run. The defaults are the protocol of the NACL paper.

    `recipe` fills in the settings that are not given; "paper" is these defaults.
    `device` "auto" is cuda, mps or cpu, the first that is available. `precision` "auto" is
    bf16-mixed on CUDA devices that support it, otherwise 32. `compile`, `cuda_graph` and
    `channels_last` "auto" are on for CUDA, `deterministic` "auto" for precision 32. `batch_size` is
    the total over all processes. `clip` is the maximum gradient norm, `ema` the decay of the
    averaged weights. `select` is the measure by which validation chooses best.pt. If `recover` is
    set, a training that breaks down continues once from best.pt with half the learning rate.
    `augment` lists segcal's batched transforms and MONAI's dictionary transforms by name. `posthoc`
    is the calibrator that `segcal train` fits on the validation cases in the end ("auto" or a
    name), which `segcal evaluate` and `segcal predict` then use.
    """

    recipe: str = "paper"
    data: DataConfig = DataConfig()
    loss: LossConfig = LossConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    epochs: Positive = 100
    batch_size: Positive = 16
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    precision: Precision = "auto"
    compile: Switch = "auto"
    cuda_graph: Switch = "auto"
    channels_last: Switch = "auto"
    deterministic: Switch = "auto"
    validate_every: Positive = 1
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    select: Literal["dsc", "nll", "both"] = "dsc"
    recover: bool = False
    augment: tuple[Named, ...] = ()
    posthoc: str | None = None
    tensorboard: bool = False

    @_model_validator(mode="after")
    def _check_patch(self) -> Self:
        # Another recipe chooses the patch.
        if self.recipe == "paper" and self.data.mode == "3d" and self.data.patch_size is None:
            raise ValueError("`data` needs `patch_size` when `mode` is 3d, such as [16, 64, 64]")
        return self


class EvaluationConfig(Section):
    """How a run is evaluated; the options of the metrics are those of `segcal.metrics.CaseOptions`.

    Predictions are averaged over mirror images along the axes `flips` ("h", "w" and, in 3-D, "d").
    `average` chooses what is averaged: probabilities or logits. `grid` is where everything is
    measured: on the grid of the prepared set, or on that of the original scans.
    """

    regions: Annotated[tuple[RegionName, ...], Field(min_length=1), Unique] = get_args(RegionName)
    num_bins: Annotated[int, Field(ge=1, le=10_000)] = 15
    dilate_mm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    width_mm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    nsd_tolerance_mm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    units: Literal["mm", "voxel"] = "mm"
    empty: Literal["nan", "diagonal", "paper"] = "nan"
    metrics: tuple[str, ...] = ()
    checkpoint: Literal["best", "last"] = "best"
    flips: Annotated[tuple[Literal["d", "h", "w"], ...], Unique] = ()
    average: Literal["probs", "logits"] = "probs"
    grid: Literal["prepared", "original"] = "prepared"

    def metric_options(self) -> dict[str, Any]:
        """The arguments of `segcal.metrics.CaseOptions`."""
        return self.model_dump(exclude={"checkpoint", "flips", "average", "grid"})


def make_config(
    file: Path | str | None = None,
    *,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """A config from a YAML file or the defaults, changed by `flags` and then by `overrides`.

    The keys of both are dotted paths; `overrides` are strings "key=value" with YAML values. Errors
    name the file or the key.

    Example:
        >>> make_config(overrides=["loss.dice_weight=1", "optimizer.lr=3e-4"]).optimizer.lr
        0.0003
    """
    content = read_yaml(file) if file is not None else {}
    for key, value in (flags or {}).items():
        _put(content, key, value)
    put_overrides(content, overrides)
    return check_config(content, str(file) if file is not None else "config")


def put_overrides(content: dict[str, Any], overrides: Iterable[str]) -> None:
    """Set each "key=value" in nested content; keys are dotted paths, values YAML."""
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {text}: expected key=value")
        try:
            _put(content, key.strip(), parse_yaml(value))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"--set {text}: {value!r} is not a YAML value") from error


def check_config(content: Mapping[str, Any], source: str = "config") -> TrainConfig:
    """Validate plain content; a ConfigError of one line names the source."""
    return check_section(TrainConfig, content, source)


def check_section(kind: type[S], content: Mapping[str, Any], source: str) -> S:
    """Validate plain content as a section; a ConfigError of one line names the source."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(map(invalid_key, error.errors()))}") from error


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML file of keys and values, or raise a ConfigError that names it."""
    try:
        content = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not YAML ({error})") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values, but got {type(content).__name__}")
    return content


def to_yaml(config: TrainConfig) -> str:
    """The config as YAML; `check_config` of its content returns an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def change_config(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A copy with other values: `{"epochs": 20, "optimizer": {"lr": 3e-4}}`.

    The keys of a section that are not given keep their values.
    """
    content = config.model_dump(exclude_unset=True)
    for key, value in changes.items():
        both = isinstance(content.get(key), dict) and isinstance(value, Mapping)
        content[key] = {**content[key], **value} if both else value
    return check_config(content)


def merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated by `more`, section by section."""
    out = dict(base)
    for key, value in more.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out


def changed_values(old: TrainConfig, new: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """(old, new) value of each dotted key that differs; None where it is not set.

    Keys that the recipe of `new` fills in do not count.
    """
    filled = new.recipe != "paper"
    before = dict(_flat(old.model_dump(mode="json")))
    after = dict(_flat(new.model_dump(mode="json", exclude_unset=filled)))
    keys = after if filled else before | after
    pairs = {key: (before.get(key), after.get(key)) for key in sorted(keys)}
    return {key: (one, other) for key, (one, other) in pairs.items() if one != other}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested content; missing sections are added."""
    *sections, last = key.split(".")
    for name in sections:
        inner = content.get(name)
        if inner is None:
            inner = content[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"`{key}`: `{name}` is not a section, but {inner!r}")
        content = inner
    content[last] = value
