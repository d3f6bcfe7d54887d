"""A training step as one CUDA graph: the host says "again" instead of launching every kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from segcal.losses.base import add_up
from segcal.training.loss_meter import TrainingError
from segcal.training.state import TrainingState

# Steps before the first capture: libraries choose their algorithms, optimizers make their state.
WARMUP = 3
# Of the GPU's memory, what a graph and an ordinary step together may take.
MEMORY_SHARE = 0.9


class CapturedStep:
    """Does steps of a job, whole batches by replaying a graph of one step.

    A graph holds the learning rate and the weight of the penalty that it was captured with: when
    they change it is captured anew. An incomplete batch is an ordinary step. A network that cannot
    be captured (one that asks the GPU for values in between), or that leaves no memory for a graph
    beside ordinary steps, is trained without, which `say` tells.

    Args:
        job: what is trained, on one GPU.
        say: takes a line for the user.
    """

    def __init__(self, job: TrainingState, say: Callable[[str], None]) -> None:
        self.job, self.say = job, say
        self.possible = True
        self._settings: tuple[Any, ...] = ()
        self._waiting = WARMUP
        self._rehearsed = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, Tensor]
        self._terms: dict[str, Tensor] = {}
        torch.cuda.reset_peak_memory_stats(job.fabric.device)
        self._aside = torch.cuda.Stream(job.fabric.device)  # type: ignore[no-untyped-call]

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
                with self._on_another_stream():
                    return self.job.step(image, target)
            if not self._rehearsed:
                self._rehearsed = True
                obstacle = self._obstacle(image, target)
                if obstacle is not None:
                    self._refuse(obstacle)
                    return self.job.step(image, target)
            self._graph = self._captured(image, target)
        for kept, new in zip(self._inputs, (image, target), strict=True):
            kept.copy_(new)
        self._graph.replay()
        return self._terms

    @contextmanager
    def _on_another_stream(self) -> Iterator[None]:
        """As torch asks of what runs before it is captured."""
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            yield
        torch.cuda.current_stream().wait_stream(self._aside)

    def _obstacle(self, image: Tensor, target: Tensor) -> str | None:
        """Why a graph should not be tried: torch does not recover from a capture that failed."""
        device = self.job.fabric.device
        used = torch.cuda.memory_allocated(device)
        most = torch.cuda.max_memory_allocated(device)
        there = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        # A graph keeps its memory; an incomplete batch and validation need as much again.
        if used + 2 * (most - used) > MEMORY_SHARE * there:
            return "there is no memory for it beside ordinary steps"
        return self._rehearse(image, target)

    def _rehearse(self, image: Tensor, target: Tensor) -> str | None:
        """A forward and a backward pass that may not ask the GPU for anything; nothing remains."""
        job = self.job
        buffers = [buffer.clone() for buffer in job.network.buffers()]
        before, random = torch.cuda.get_sync_debug_mode(), torch.cuda.get_rng_state(image.device)
        try:
            with warnings.catch_warnings():
                # It warns that it does not see everything: what it misses fails at the capture.
                warnings.simplefilter("ignore", UserWarning)
                torch.cuda.set_sync_debug_mode("error")
            with self._on_another_stream():
                job.fabric.backward(add_up(job.terms(job.forward(image), target)))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever it is, training can do without a graph
            return (str(error) or type(error).__name__).splitlines()[0]
        finally:
            torch.cuda.set_sync_debug_mode(before)
            torch.cuda.set_rng_state(random, image.device)
            job.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for buffer, value in zip(job.network.buffers(), buffers, strict=True):
                    buffer.copy_(value)
        return None

    def _refuse(self, reason: str) -> None:
        said = f"a CUDA graph of the step cannot be made ({reason})"
        if self.job.config.cuda_graph == "on":
            raise TrainingError(f"{said}; set `cuda_graph` to auto or off")
        self.possible = False
        self.say(f"{said}; going on without")

    def _captured(self, image: Tensor, target: Tensor) -> torch.cuda.CUDAGraph:
        self._inputs = _like(image), _like(target)
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads of others (a loader that pins memory) may go on meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._terms = self.job.step(*self._inputs)
        except RuntimeError as error:
            # torch's random numbers and streams are not what they were: nothing goes on from here.
            reason = str(error.__context__ or error).splitlines()[0]
            raise TrainingError(
                f"capturing the step as a CUDA graph failed ({reason}); "
                "set `cuda_graph` to off and train anew, or go on with --resume"
            ) from error
        return graph


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
