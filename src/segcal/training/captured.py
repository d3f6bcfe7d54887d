"""A training step as one CUDA graph: the host says "again" instead of launching every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from segcal.training.job import Job
from segcal.training.watch import TrainingError

# Steps before the first capture: libraries choose their algorithms, optimisers make their state.
WARMUP = 3


class CapturedStep:
    """Does steps of a job, whole batches by replaying a graph of one step.

    A graph holds the learning rate and the weight of the penalty that it was captured with: when
    they change it is captured anew. An incomplete batch is an ordinary step. A network that cannot
    be captured (one that asks the GPU for values in between) is trained without, which `say` tells.

    Args:
        job: what is trained, on one GPU.
        say: takes a line for the user.
    """

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self.job, self.say = job, say
        self.possible = True
        self._settings: tuple[Any, ...] = ()
        self._waiting = WARMUP
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, Tensor]
        self._terms: dict[str, Tensor] = {}
        self._aside = torch.cuda.Stream(job.fabric.device)  # type: ignore[no-untyped-call]
        for group in job.optimiser.param_groups:
            if "capturable" in group:
                group["capturable"] = True

    def __call__(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The parts of the loss; they are overwritten by the next step."""
        if not self.possible or len(image) != self.job.config.batch_size:
            return self.job.step(image, target)
        settings = (image.shape, image.stride(), target.shape, *self.job.step_settings())
        if settings != self._settings:
            self._graph = None
            self._waiting = max(self._waiting, 1)
            self._settings = settings
        if self._graph is None:
            if self._waiting:
                self._waiting -= 1
                return self._step_aside(image, target)
            self._capture(image, target)
            if self._graph is None:
                return self.job.step(image, target)
        for kept, new in zip(self._inputs, (image, target), strict=True):
            kept.copy_(new)
        self._graph.replay()
        return self._terms

    def _step_aside(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """An ordinary step on another stream, as what is to be captured asks for."""
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            terms = self.job.step(image, target)
        torch.cuda.current_stream().wait_stream(self._aside)
        return terms

    def _capture(self, image: Tensor, target: Tensor) -> None:
        self._inputs = _like(image), _like(target)
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads of others (a loader that pins memory) may go on meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._terms = self.job.step(*self._inputs)
        except RuntimeError as error:
            reason = f"a CUDA graph of the step cannot be made ({str(error).splitlines()[0]})"
            if self.job.config.cuda_graph == "on":
                raise TrainingError(f"{reason}; set `cuda_graph` to auto") from error
            self.possible = False
            self.job.optimiser.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            self.say(f"{reason}; going on without")
            return
        self._graph = graph


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
