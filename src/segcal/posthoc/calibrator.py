"""The base class of all calibrators, and the registry that finds them by name."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, check_array, is_tensor, most_probable, to_numpy
from segcal.core.checks import check_options
from segcal.core.heads import two_classes
from segcal.posthoc._blocks import (
    BlockReader,
    FeatureMap,
    Floats,
    Space,
    Spacing,
    log_softmax,
    map_blocks,
    softmax,
)
from segcal.posthoc.sample import Balance, Sample, Voxels, all_voxels
from segcal.registry import Registry


@dataclass
class FitReport:
    """What a fit used and found.

    Attributes:
        cases, voxels: what the fit represents.
        used: voxels that it computed with.
        nll_before, nll_after: mean negative log-likelihood in nats, with the weights of `balance`.
        iterations: steps of the optimizer.
        converged: False if the optimizer stopped before the optimum.
        balance, from_probs: as given to `fit`.
        at_bound: names of the parameters that ended at a limit.
    """

    cases: int
    voxels: int
    used: int
    nll_before: float = math.nan
    nll_after: float = math.nan
    iterations: int = 0
    converged: bool = True
    balance: str = "none"
    from_probs: bool = False
    at_bound: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        """A line for each problem of the fit."""
        lines = [
            f"the {name} stopped at its limit: there are too few errors to fit on, or the network "
            "is extremely over- or under-confident; fit on more cases, or with a simpler method"
            for name in self.at_bound
        ]
        if not self.converged:
            lines.append("the optimizer stopped before it converged")
        return lines


class BaseCalibrator(ABC):
    """What a fitted calibrator offers to commands: `transform`, its parameters, its file.

    Attributes:
        keeps_argmax: whether the largest probability always remains that of the same class.
        num_classes: K, once fitted.
        report: what the fit used and found.
        about: further content of the file, such as the region; JSON values.
    """

    keeps_argmax: bool = False

    def __init__(self) -> None:
        self.num_classes: int | None = None
        self.report: FitReport | None = None
        self.about: dict[str, Any] = {}

    @abstractmethod
    def transform(
        self, logits: Array, *, from_probs: bool = False, spacing_mm: Spacing | None = None
    ) -> Array:
        """Calibrated probabilities (K, *S), of the kind of `logits`."""

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The parameters, as JSON values."""

    @abstractmethod
    def set_params(self, params: dict[str, Any]) -> None:
        """Restore what `params` returned; raises a ValueError if it is invalid."""

    @property
    def needs_spacing(self) -> bool:
        """Whether `transform` needs a whole case and its voxel size: the method uses neighbors."""
        return False

    @property
    def method(self) -> str:
        """Its name in `CALIBRATORS`, or its import path."""
        return CALIBRATORS.name_of(type(self))

    def options(self) -> dict[str, Any]:
        """The arguments that construct another calibrator like this one, unfitted."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, path: Path | str) -> None:
        """Write a file that `load_calibrator` reads, completely or not at all."""
        from segcal.posthoc.files import save_calibrator

        save_calibrator(self, Path(path))

    def check_fitted(self) -> int:
        """K, or a ValueError if this calibrator is not fitted."""
        if self.num_classes is None:
            raise ValueError("Expected a fitted calibrator: call `fit`, or load one from a file.")
        return self.num_classes

    def __repr__(self) -> str:
        state = "unfitted" if self.num_classes is None else str(self.params())
        return f"{type(self).__name__}({state})"


class Calibrator(BaseCalibrator):
    """A map from logits to calibrated probabilities, fitted on cases the network did not see.

    `fit`, `transform` and `save` are the same for all calibrators. A subclass defines

    - `estimate(voxels)`: find the parameters on a weighted sample of voxels;
    - `transform_rows(rows)`: calibrated logits (K, n) of log-probabilities (K, n);
    - `params()` and `set_params(params)`: the parameters as JSON values, and back;

    calls `super().__init__()`, and keeps each argument of its constructor as an attribute of the
    same name. It treats each voxel independently, except by `feature_map`. Its class, or its name
    if it is registered in `CALIBRATORS`, works in `segcal calibrate --method`, in plans and in
    saved files.

    Attributes:
        space: what `estimate` and `transform_rows` work on: `"log_probs"`, which logits and
            probabilities both provide, or raw `"logits"`.
    """

    space: ClassVar[Space] = "log_probs"

    @abstractmethod
    def estimate(self, voxels: Voxels) -> None:
        """Find the parameters; `voxels.blocks()` yields (rows (K, n), labels (n,), weights (n,)).

        `self.num_classes` and `self.report` are set. The report may be completed; where it has no
        NLL, it is computed afterwards.
        """

    @abstractmethod
    def transform_rows(self, rows: Floats) -> Floats:
        """Calibrated logits (K, n) of rows (K, n) in this calibrator's space."""

    def feature_map(self) -> FeatureMap | None:
        """A function of the predicted labels (*S) of a whole case and its voxel size, or None.

        It returns further values of each voxel, (F, *S), which follow the K rows in `estimate` and
        `transform_rows`.
        """
        return None

    @property
    def needs_spacing(self) -> bool:
        return self.feature_map() is not None

    def fit(
        self,
        cases: Iterable[object],
        *,
        from_probs: bool = False,
        balance: Balance = "none",
        max_voxels: int | None = 1_000_000,
        seed: int = 0,
        ignore_index: int = -100,
    ) -> Self:
        """Fit on held-out cases by negative log-likelihood; returns itself.

        Args:
            cases: `HeldOut`, or tuples (logits (K, *S), target (*S)[, mask (*S)]); read once, one
                at a time. Voxels outside the mask, or with `ignore_index`, are skipped.
            from_probs: the arrays hold probabilities; their logarithms are used.
            balance: `"none"` keeps the class frequencies, so that probabilities over all voxels
                become calibrated; `"class"` gives every class the same weight.
            max_voxels: size of the class-balanced sample; None samples nothing and reads all cases
                again in every pass (`cases` must allow that).
            seed: seed of the sample.
            ignore_index: label of voxels to skip.
        """
        reading: dict[str, Any] = {
            "from_probs": from_probs, "space": self.space, "ignore_index": ignore_index,
            "features": self.feature_map(),
        }  # fmt: skip
        if max_voxels is None:
            return self.fit_voxels(all_voxels(cases, BlockReader(**reading), balance))
        sample = Sample(max_voxels=max_voxels, seed=seed, **reading)
        for case in cases:
            sample.add(case)
        return self.fit_voxels(sample.select(balance=balance))

    def fit_voxels(self, voxels: Voxels) -> Self:
        """Fit on `Sample.select(…)` or `all_voxels(…)`; returns itself."""
        total = int(voxels.counts.sum())
        if not total:
            empty = f"the region is empty in all {voxels.cases} cases"
            raise ValueError(f"Expected voxels to fit on, but {empty}.")
        self.num_classes = voxels.num_classes
        self.report = FitReport(
            voxels.cases, total, voxels.used, balance=voxels.balance, from_probs=voxels.from_probs
        )
        if self.feature_map() is None:  # a sample may have the features of another calibrator
            voxels = voxels.without_features()
        self.estimate(voxels)
        if math.isnan(self.report.nll_after):
            self.report.nll_before = _mean_nll(voxels, lambda rows: rows[: voxels.num_classes])
            self.report.nll_after = _mean_nll(voxels, self.transform_rows)
        return self

    def transform(
        self,
        logits: Array,
        *,
        from_probs: bool = False,
        class_axis: int = 0,
        spacing_mm: Spacing | None = None,
    ) -> Array:
        """Calibrated probabilities, of the shape and kind (numpy or torch) of `logits`.

        Computed in float64, a block at a time; returned in the dtype of `logits`, half precision
        as float32. Where `keeps_argmax` is True, the largest class remains the largest: rounding
        to the dtype cannot produce a tie.

        Args:
            logits: (K, *S), or (B, K, *S) with `class_axis=1`.
            from_probs: `logits` holds probabilities.
            class_axis: position of the class axis.
            spacing_mm: voxel size, one number or one per axis of S; needed by calibrators with
                a `feature_map`.
        """
        num_classes = self.check_fitted()
        check_array("logits", logits)
        source = np.moveaxis(to_numpy(logits, widen_half=False), class_axis, 0)
        if source.dtype.kind != "f" or source.ndim < 2 or source.shape[0] != num_classes:
            raise ValueError(
                f"Expected argument `logits` to be floating point with {num_classes} classes "
                f"on axis {class_axis}, but got {source.dtype} of shape {tuple(logits.shape)}."
            )
        reader = BlockReader(from_probs=from_probs, space=self.space, features=self.feature_map())
        change = self._transform_block
        if reader.features is None or class_axis == 0:
            result = map_blocks(source, reader, change, spacing_mm)
        else:  # features are of single images
            images = [
                map_blocks(image, reader, change, spacing_mm) for image in source.swapaxes(0, 1)
            ]
            result = np.stack(images, axis=1)
        result = np.moveaxis(result, 0, class_axis)
        if is_tensor(logits):
            import torch

            return torch.from_numpy(np.ascontiguousarray(result)).to(logits.device)
        return result

    def _transform_block(self, rows: Floats, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Probabilities (K, n) in the dtype of the output."""
        with np.errstate(over="ignore", invalid="ignore"):
            probs = softmax(self.transform_rows(rows))
        if not np.isfinite(probs).all():
            raise ValueError(
                f"{type(self).__name__} does not give finite probabilities for these logits: its "
                "parameters are too large; fit it again."
            )
        probs = probs.astype(np.promote_types(block.dtype, np.float32))
        if self.keeps_argmax:
            _keep_labels(probs, block)
        return probs


CALIBRATORS: Registry[type[Calibrator]] = Registry(
    "calibrator",
    "segcal.calibrators",
    lambda thing: isinstance(thing, type) and issubclass(thing, Calibrator),
    "a subclass of segcal.posthoc.Calibrator",
)


def make_calibrator(method: str, **options: Any) -> Calibrator:
    """An unfitted calibrator by its name in `CALIBRATORS` or its import path.

    Example:
        >>> make_calibrator("temperature", bounds=(0.5, 5.0))
        TemperatureScaling(unfitted)
    """
    kind = CALIBRATORS.get(method)
    check_options(f"calibrator {method!r}", options, inspect.signature(kind).parameters)
    return kind(**options)


def short_name(method: str) -> str:
    """A name for files and folders: that of the class where `method` is an import path.

    Example:
        >>> short_name("my_package.calibrators:Shift"), short_name("vector")
        ('Shift', 'vector')
    """
    return method.rpartition(":")[2]


def to_probs(
    logits: npt.NDArray[Any], *, from_probs: bool = False, heads: bool = False
) -> npt.NDArray[Any]:
    """The probabilities (K, *S) of a network before calibration: the softmax of its logits.

    With `heads` each of the K logits has a sigmoid of its own.

    Computed in float64, a block at a time; half precision is returned as float32. Probabilities
    are returned unchanged where `from_probs` is given, and rejected where it is not.
    """
    if from_probs:
        return logits
    if heads:
        return np.stack([to_probs(two_classes(head, from_probs=False))[1] for head in logits])
    return map_blocks(logits, BlockReader(space="logits"), lambda rows, block: softmax(rows))


def _keep_labels(probs: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Where rounding moved the largest class of `probs` (K, n), raise the original one.

    It is raised by the smallest step of the dtype. Ties are read as the smaller class.
    """
    before, after = most_probable(source), most_probable(probs)
    moved = np.flatnonzero(before != after)
    if len(moved):
        top = probs[after[moved], moved]
        probs[before[moved], moved] = np.nextafter(top, np.asarray(2, probs.dtype))


def _mean_nll(voxels: Voxels, scale: Callable[[Floats], Floats]) -> float:
    total = weight = 0.0
    for rows, labels, weights in voxels.blocks():
        own = log_softmax(scale(rows))[labels, np.arange(len(labels))]
        total -= float(weights @ own)
        weight += float(weights.sum())
    return total / weight
