"""A training step as one CUDA graph, which is replayed instead of launching every kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from segcal.losses import add_up
from segcal.training.errors import TrainingError
from segcal.training.state import TrainingState

# Steps before the first capture: libraries choose algorithms, optimizers allocate their state.
WARMUP = 3
# A graph and an ordinary step together may use this share of the GPU's memory.
MEMORY_SHARE = 0.9


class CudaGraphStep:
    """Trains complete batches by replaying a graph of one step.

    A graph contains the learning rate and the penalty weight that it was captured with; when they
    change, it is captured again. An incomplete batch is an ordinary step. If the network cannot be
    captured (because it reads values from the GPU in between), or if memory is too small for a
    graph next to ordinary steps, training continues without a graph, and `say` gets the reason.
    """

    def __init__(self, state: TrainingState, say: Callable[[str], None]) -> None:
        self.state, self.say = state, say
        self.possible = True
        self._settings: tuple[Any, ...] = ()
        self._warmup_left = WARMUP
        self._checked = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, Tensor]
        self._terms: dict[str, Tensor] = {}
        torch.cuda.reset_peak_memory_stats(state.fabric.device)
        self._stream = torch.cuda.Stream(state.fabric.device)  # type: ignore[no-untyped-call]

    def __call__(self, image: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The parts of the loss; the next step overwrites them."""
        if not self.possible or len(image) != self.state.config.batch_size:
            return self.state.step(image, target)
        settings = (image.shape, image.stride(), target.shape, *self.state.step_settings())
        if settings != self._settings:
            self._graph = None
            self._warmup_left = max(self._warmup_left, 1)
            self._settings = settings
        if self._graph is None:
            if self._warmup_left:
                self._warmup_left -= 1
                with self._on_side_stream():
                    return self.state.step(image, target)
            if not self._checked:
                self._checked = True
                obstacle = self._find_obstacle(image, target)
                if obstacle is not None:
                    self._give_up(obstacle)
                    return self.state.step(image, target)
            self._graph = self._capture(image, target)
        for buffer, new in zip(self._inputs, (image, target), strict=True):
            buffer.copy_(new)
        self._graph.replay()
        return self._terms

    @contextmanager
    def _on_side_stream(self) -> Iterator[None]:
        """torch requires a side stream for steps before a capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def _find_obstacle(self, image: Tensor, target: Tensor) -> str | None:
        """Why a capture would fail. It is not tried then: torch cannot recover from a failure."""
        device = self.state.fabric.device
        used = torch.cuda.memory_allocated(device)
        peak = torch.cuda.max_memory_allocated(device)
        available = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        # A graph keeps its memory; an incomplete batch and validation need as much again.
        if used + 2 * (peak - used) > MEMORY_SHARE * available:
            return "too little memory for a graph next to ordinary steps"
        return self._rehearse(image, target)

    def _rehearse(self, image: Tensor, target: Tensor) -> str | None:
        """A forward and a backward pass that fail if they read a value; they change no state."""
        state = self.state
        buffers = [buffer.clone() for buffer in state.network.buffers()]
        before, random = torch.cuda.get_sync_debug_mode(), torch.cuda.get_rng_state(image.device)
        try:
            with warnings.catch_warnings():
                # It warns that it does not detect everything; the rest fails at the capture.
                warnings.simplefilter("ignore", UserWarning)
                torch.cuda.set_sync_debug_mode("error")
            with self._on_side_stream():
                state.fabric.backward(add_up(state.terms(state.forward(image), target)))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # training works without a graph, whatever the error is
            return (str(error) or type(error).__name__).splitlines()[0]
        finally:
            torch.cuda.set_sync_debug_mode(before)
            torch.cuda.set_rng_state(random, image.device)
            state.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for buffer, value in zip(state.network.buffers(), buffers, strict=True):
                    buffer.copy_(value)
        return None

    def _give_up(self, reason: str) -> None:
        problem = f"the training step cannot be captured as a CUDA graph ({reason})"
        if self.state.config.cuda_graph == "on":
            raise TrainingError(f"{problem}; set `cuda_graph` to auto or off")
        self.possible = False
        self.say(f"{problem}; training continues without it")

    def _capture(self, image: Tensor, target: Tensor) -> torch.cuda.CUDAGraph:
        # `empty_strided` keeps the strides of an image of one channel.
        image, target = (
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            for one in (image, target)
        )
        self._inputs = image, target
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (a loader that pins memory) may use CUDA during the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._terms = self.state.step(*self._inputs)
        except RuntimeError as error:
            # torch's random generator and streams are in an undefined state now.
            reason = str(error.__context__ or error).splitlines()[0]
            raise TrainingError(
                f"capturing the step as a CUDA graph failed ({reason}); "
                "set `cuda_graph` to off and continue with --resume"
            ) from error
        return graph
