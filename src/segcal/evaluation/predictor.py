"""The networks of runs as one function of an image, which worker processes can receive."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segcal.config import EvaluationConfig
from segcal.core.memory import all_freed_memory_kept
from segcal.evaluation.finished_run import FinishedRun
from segcal.evaluation.predict import (
    PatchSize,
    Prediction,
    calibrated,
    choose_device,
    predict_case,
    reproducible_float32,
)
from segcal.models import SegmentationNetwork, load_model
from segcal.posthoc import BaseCalibrator


@dataclass(frozen=True)
class Predictor:
    """One network or the average of several, calibrated if there is a calibrator.

    Networks are loaded when they are first used. A pickled predictor holds paths only; the
    processes that receive it for one case after another load the networks once.

    Args:
        checkpoints, patch_sizes: of each network.
        config: flips and average.
        sigmoid: whether the outputs are sigmoid heads.
        device: see `choose_device`.
        calibrator: of the probabilities.
        threads: of torch; their number changes the last digits of a convolution.
    """

    checkpoints: tuple[Path, ...]
    patch_sizes: tuple[PatchSize, ...]
    config: EvaluationConfig
    sigmoid: bool = False
    device: str = "auto"
    calibrator: BaseCalibrator | None = None
    threads: int = field(default_factory=torch.get_num_threads)

    @cached_property
    def networks(self) -> list[SegmentationNetwork]:
        torch.set_num_threads(self.threads)
        device = choose_device(self.device)
        return [load_model(path, device) for path in self.checkpoints]

    def __call__(
        self, image: NDArray[np.floating], spacing_mm: tuple[float, float, float]
    ) -> Prediction:
        """Predict an image (C, Z, Y, X), as the networks were trained on."""
        device = choose_device(self.device)
        with reproducible_float32(), all_freed_memory_kept(device.type == "cpu"):
            found = predict_case(
                self.networks, torch.from_numpy(image).to(device),
                patch_size=list(self.patch_sizes), flips=self.config.flips,
                average=self.config.average, sigmoid=self.sigmoid,
            )  # fmt: skip
        return found if self.calibrator is None else calibrated(found, self.calibrator, spacing_mm)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        # Ray keeps workers: other weights under the same path must not be taken for these.
        changed = [path.stat().st_mtime_ns for path in self.checkpoints]
        return _received, (pickle.dumps((values, changed)),)


@lru_cache(maxsize=1)
def _received(content: bytes) -> Predictor:
    return Predictor(**pickle.loads(content)[0])


def make_predictor(
    runs: Sequence[FinishedRun],
    config: EvaluationConfig,
    device: str,
    calibrator: BaseCalibrator | None = None,
) -> Predictor:
    """The predictor of a run, or of several to average."""
    return Predictor(
        tuple(run.checkpoint(config.checkpoint) for run in runs),
        tuple(run.config.data.patch_size for run in runs),
        config, bool(runs[0].heads), device, calibrator,
    )  # fmt: skip
