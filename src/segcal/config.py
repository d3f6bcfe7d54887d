"""What training and evaluation are told: checked sections, YAML in and out. Knows nobody.

An unknown key is an error that names the nearest one; names of losses, networks and transforms are
checked where they are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic import model_validator as _model_validator

Positive = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A setting that is not understood, in one line that names its key."""


class Section(BaseModel):
    """A group of settings; frozen, and without room for unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @_model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        known = list(cls.model_fields)
        for key in content:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                raise ValueError(f"has no key `{key}` (it has {', '.join(known)}).{hint}")
        return content


S = TypeVar("S", bound=Section)


class DataConfig(Section):
    """What to train on.

    `size` crops or pads slices of unequal size (2d); `patch_size`, `per_case` and `foreground`
    are those of `PatchDataset` (3d). `loader` "resident" holds all slices in memory.
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

    @_model_validator(mode="after")
    def _patches_have_a_size(self) -> Self:
        if self.mode == "3d" and self.patch_size is None:
            raise ValueError("needs `patch_size` when `mode` is 3d, such as [16, 64, 64]")
        if self.mode == "2d" and self.patch_size is not None:
            raise ValueError("takes `patch_size` only when `mode` is 3d; slices have `size`")
        if self.mode == "3d" and (self.size is not None or self.loader == "resident"):
            raise ValueError("takes `size` and `loader: resident` only when `mode` is 2d")
        return self


class Named(Section):
    """Something by name, with its options: a schedule or a transform."""

    name: str
    options: dict[str, Any] = {}


class LossConfig(Section):
    """A loss of `segcal.losses`; `dice_weight` adds soft Dice, `schedule` moves the penalty."""

    name: str = "nacl"
    options: dict[str, Any] = {}
    dice_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    schedule: Named | None = None


class ModelConfig(Section):
    """A network: "unet", or "monai." and a class of MONAI; see `segcal.models.NetworkSpec`."""

    name: str = "unet"
    options: dict[str, Any] = {}
    divisible_by: Positive | None = None


class OptimiserConfig(Section):
    """The learning rate is `lr`, times `factor` from each epoch of `milestones` on."""

    name: str = "adam"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    milestones: tuple[Annotated[int, Field(ge=0)], ...] = (50,)
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    options: dict[str, Any] = {}

    def lr_at(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)


def _switch(value: Any) -> Any:
    """YAML reads a bare on or off as a truth value."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Precision = Annotated[
    Literal["auto", "32", "tf32", "bf16-mixed"],
    BeforeValidator(lambda value: "32" if value == 32 else value),
]


class TrainConfig(Section):
    """Everything that decides how a run comes out. The defaults are the paper's protocol.

    `batch_size` is that of all processes together. `precision` "auto" is bf16-mixed on GPUs that
    have it and 32 elsewhere. `compile`, `cuda_graph`, `channels_last` and `deterministic` "auto":
    on a GPU, compile, replay steps and use channels_last; be deterministic where the precision is
    32. `clip` is the largest norm of the gradient, `ema` the decay of an average of the weights.
    `augment` lists MONAI's dictionary transforms by name.
    """

    data: DataConfig = DataConfig()
    loss: LossConfig = LossConfig()
    model: ModelConfig = ModelConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    epochs: Positive = 100
    batch_size: Positive = 16
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    precision: Precision = "auto"
    compile: Switch = "auto"
    cuda_graph: Switch = "auto"
    channels_last: Switch = "auto"
    deterministic: Switch = "auto"
    validate_every: Positive = 1
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    augment: tuple[Named, ...] = ()
    tensorboard: bool = False


Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EvaluationConfig(Section):
    """How a run is evaluated; the options of the metrics are those of `segcal.metrics.CaseOptions`.

    `flips` are the axes ("h", "w" and, in 3-D, "d") over whose mirror images predictions are
    averaged, as `average` says: in probability or in logit space.
    """

    regions: tuple[Literal["foreground", "all", "union", "boundary"], ...] = (
        "foreground", "all", "union", "boundary",
    )  # fmt: skip
    num_bins: Annotated[int, Field(ge=1, le=10_000)] = 15
    dilate_mm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    width_mm: Length = 3.0
    nsd_tolerance_mm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    units: Literal["mm", "voxel"] = "mm"
    empty: Literal["nan", "diagonal", "paper"] = "nan"
    metrics: tuple[str, ...] = ()
    checkpoint: Literal["best", "last"] = "best"
    flips: tuple[Literal["d", "h", "w"], ...] = ()
    average: Literal["probs", "logits"] = "probs"

    @_model_validator(mode="after")
    def _each_once(self) -> Self:
        for name in ("regions", "flips"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"has a value twice in `{name}`")
        if not self.regions:
            raise ValueError("needs at least one of `regions`")
        return self

    def metric_options(self) -> dict[str, Any]:
        """The arguments of `segcal.metrics.CaseOptions`."""
        return self.model_dump(exclude={"checkpoint", "flips", "average"})


def make_config(
    file: Path | str | None = None,
    *,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """A config from a YAML file (or the defaults), then `flags`, then "key=value" overrides.

    Keys of both are dotted paths. Errors name the file or the key.

    Example:
        >>> make_config(overrides=["loss.dice_weight=1", "optimiser.lr=3e-4"]).optimiser.lr
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
            raise ConfigError(f"Expected argument `--set` to be key=value, but got {text!r}.")
        try:
            _put(content, key.strip(), yaml.load(value, Loader=_Loader))
        except yaml.YAMLError as error:
            raise ConfigError(f"Expected {key} to be a YAML value, but got {value!r}.") from error


def check_config(content: Mapping[str, Any], source: str = "config") -> TrainConfig:
    """The config of plain content, or a ConfigError of one line."""
    return check_section(TrainConfig, content, source)


def check_section(kind: type[S], content: Mapping[str, Any], source: str) -> S:
    """A section of plain content, or a ConfigError of one line that names the source."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(map(_sentence, error.errors()))}") from error


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file, or a ConfigError that names the file."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not YAML ({reason})") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: Expected keys and values, but got {type(content).__name__}.")
    return content


def to_yaml(config: TrainConfig) -> str:
    """The config as YAML; `check_config` of its content is the same config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def changed_keys(old: TrainConfig, new: TrainConfig) -> list[str]:
    """Dotted keys whose values differ."""
    before, after = (dict(_flat(c.model_dump(mode="json"))) for c in (old, new))
    return sorted(key for key in before | after if before.get(key) != after.get(key))


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested content; sections that are missing come into being."""
    *sections, last = key.split(".")
    for name in sections:
        inner = content.get(name)
        if inner is None:
            inner = content[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"Expected `{name}` in `{key}` to be a section, but it is {inner!r}.")
        content = inner
    content[last] = value


def _sentence(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"`{where}` {message}" if where else f"the top level {message}"
    message = message[:1].lower() + message[1:]
    return f"Expected `{where}` to be valid ({message}), but got {error['input']!r}."


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of a number: 1e-3 is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
