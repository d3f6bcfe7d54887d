"""Time of a training step of the paper's U-Net on a GPU: plain PyTorch and segcal, by stage.

python benchmarks/bench_training.py [--steps N] [--size 192] [--batch 16] [--losses nacl ce_dice]
                                    [--only "plain PyTorch, TF32" "segcal (nacl)"]

Both train on the same generated slices, 16 × 1 × 192 × 192 by default. The baseline is a typical
hand-written loop: TF32, eager, F.cross_entropy, torch's Adam. Its slices are already on the GPU, so
that the comparison does not depend on a loader; a variant with a DataLoader is measured as well.
segcal uses its own loop: resident batches, bf16, channels_last, fused losses and Adam, a compiled
network, whole steps replayed as one CUDA graph. Further rows switch off one of these at a time.
Whole steps are timed with the wall clock over many steps and one synchronization at the end; stages
with CUDA events, in a second pass without replay. Writes results/training_cuda.json and prints a
Markdown table.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _common import RESULTS, environment, summary, write_results
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from segcal.config import TrainConfig, check_config
from segcal.data import Batch, PhantomSource, ResidentLoader, open_dataset, prepare
from segcal.losses import add_up
from segcal.models import UNet
from segcal.training.build import build_state
from segcal.training.cuda_graph import CudaGraphStep
from segcal.training.device import make_fabric, numerics, resolve
from segcal.training.loss_meter import CHECK_EVERY
from segcal.training.state import TrainingState

STAGES = ("data", "forward", "loss", "backward", "step")
WARMUP = 30
Stages = Callable[[], Iterator[str]]
Whole = Callable[[], None]
VARIANTS: dict[str, dict[str, Any]] = {
    "segcal": {},
    "segcal, not compiled": {"compile": "off"},
    "segcal, no CUDA graph of steps": {"cuda_graph": "off"},
    "segcal, neither": {"compile": "off", "cuda_graph": "off"},
    "segcal, not channels_last": {"channels_last": "off"},
    "segcal, tf32": {"precision": "tf32"},
    "segcal, fp32": {"precision": "32"},
    "segcal, plain loss": {"loss": {"options": {"fused": False}}},
}


def plain_stages(state: TrainingState, *, tf32: bool, on_gpu: bool) -> Stages:
    """A typical hand-written loop, on the slices of segcal's loader."""
    loader = state.loader
    assert isinstance(loader, ResidentLoader)
    images, labels = loader.images.float() * loader.scale + loader.offset, loader.labels.long()
    size = state.config.batch_size
    if on_gpu:
        batches = endless(lambda: shuffled(images, labels, size))
    else:
        rows = TensorDataset(images.cpu(), labels.cpu())
        batches = endless(
            lambda: DataLoader(rows, size, shuffle=True, pin_memory=True, drop_last=True)
        )
    net = UNet(2, images.shape[1], state.spec.num_classes).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> Iterator[str]:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        image, target = (x.cuda(non_blocking=True) for x in next(batches))
        yield "data"
        logits = net(image)
        yield "forward"
        loss = F.cross_entropy(logits, target)
        yield "loss"
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        yield "backward"
        optimizer.step()
        yield "step"

    return step


def segcal_stages(state: TrainingState) -> tuple[Whole, Stages]:
    """The body of `TrainingLoop.train_epoch`: complete, and divided into stages."""
    state.start_epoch()
    batches = endless(lambda: state.loader)
    done = iter(range(10**9))
    do_step = CudaGraphStep(state, print) if state.cuda_graph else state.step

    def begin() -> tuple[int, Batch, Tensor, Tensor]:
        number = next(done)
        state.seed(number)
        batch = next(batches)
        return number, batch, *state.place(batch, number)

    def end(number: int, batch: Batch, terms: dict[str, Tensor]) -> None:
        state.meter.add(terms, batch.case)
        if (number + 1) % CHECK_EVERY == 0:
            state.meter.fetch()

    def whole() -> None:
        number, batch, image, target = begin()
        end(number, batch, do_step(image, target))

    def stages() -> Iterator[str]:
        number, batch, image, target = begin()
        yield "data"
        heads = state.forward(image)
        yield "forward"
        terms = state.terms(heads, target)
        total = add_up(terms)
        yield "loss"
        state.fabric.backward(total)
        yield "backward"
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.update_ema()
        end(number, batch, terms)
        yield "step"

    return whole, stages


def shuffled(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(images), device=images.device)
    for index in order[: len(order) // size * size].split(size):
        yield images[index], labels[index]


def endless(make: Callable[[], Any]) -> Iterator[Any]:
    while True:
        yield from make()


def measure(whole: Whole, stages: Stages, steps: int) -> dict[str, Any]:
    """Whole steps with the wall clock (five blocks), then each stage with CUDA events."""
    for _ in range(WARMUP):
        whole()
    torch.cuda.reset_peak_memory_stats()
    blocks = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            whole()
        torch.cuda.synchronize()
        blocks.append((time.perf_counter() - start) / steps)
    peak = torch.cuda.max_memory_reserved() / 2**30
    for _ in range(3):
        for _ in stages():
            pass
    marks = []
    for _ in range(steps):
        events = [torch.cuda.Event(enable_timing=True)]
        events[0].record()
        for _ in stages():
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        marks.append(events)
    torch.cuda.synchronize()
    stage_ms = {
        name: statistics.median(events[i].elapsed_time(events[i + 1]) for events in marks)
        for i, name in enumerate(STAGES)
    }
    return {
        "whole_step": summary(blocks),
        "whole_step_ms": 1e3 * statistics.median(blocks),
        "stages_ms": stage_ms,
        "reserved_gib": peak,
    }


def settings(data: Path, batch: int, loss: str, changes: dict[str, Any]) -> TrainConfig:
    content: dict[str, Any] = {
        "data": {"path": str(data), "loader": "resident"},
        "batch_size": batch,
        "compile": "on",
        **changes,
    }
    content["loss"] = {"name": loss, **changes.get("loss", {})}
    return resolve(check_config(content))


def run_segcal(config: TrainConfig, steps: int) -> dict[str, Any]:
    with numerics(config):
        state = build_state(config, make_fabric(config), open_dataset(config.data.path))
        started = time.perf_counter()
        whole, stages = segcal_stages(state)
        whole()
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        return {**measure(whole, stages, steps), "first_step_s": first}


def run_plain(config: TrainConfig, steps: int, **how: bool) -> dict[str, Any]:
    config = config.model_copy(update={"compile": "off"})
    state = build_state(config, make_fabric(config), open_dataset(config.data.path))
    stages = plain_stages(state, **how)

    def whole() -> None:
        for _ in stages():
            pass

    return measure(whole, stages, steps)


def table(results: dict[str, Any]) -> str:
    base = results.get("plain PyTorch, TF32", {}).get("whole_step_ms", math.nan)
    lines = [
        f"| | whole step, ms | times faster | {' | '.join(STAGES)} | GiB |",
        "|---|---:|---:|" + "---:|" * (len(STAGES) + 1),
    ]
    for name, row in results.items():
        stages = " | ".join(f"{row['stages_ms'][stage]:.2f}" for stage in STAGES)
        ms = row["whole_step_ms"]
        lines.append(
            f"| {name} | {ms:.2f} | {base / ms:.2f} | {stages} | {row['reserved_gib']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cases", type=int, default=24, help="volumes of 16 slices")
    parser.add_argument("--losses", nargs="+", default=["nacl", "ce_dice"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows of the table to measure")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_training.py needs a GPU")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "phantom"
        source = PhantomSource(cases=args.cases, size=args.size, slices=16)
        prepare(source, data, dtype="uint8", workers=8)
        base = settings(data, args.batch, args.losses[0], {})
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            "plain PyTorch, TF32": lambda: run_plain(base, args.steps, tf32=True, on_gpu=True),
            "plain PyTorch, fp32": lambda: run_plain(base, args.steps, tf32=False, on_gpu=True),
            "plain PyTorch, TF32, DataLoader": lambda: run_plain(
                base, args.steps, tf32=True, on_gpu=False
            ),
        }
        for name, changes in VARIANTS.items():
            config = settings(data, args.batch, args.losses[0], changes)
            runs[f"{name} ({args.losses[0]})"] = lambda c=config: run_segcal(c, args.steps)
        for loss in args.losses[1:]:
            config = settings(data, args.batch, loss, {})
            runs[f"segcal ({loss})"] = lambda c=config: run_segcal(c, args.steps)
        for name in args.only or list(runs):
            run = runs[name]
            results[name] = run()
            print(f"{name}: {results[name]['whole_step_ms']:.2f} ms", flush=True)
            torch.cuda.empty_cache()
            torch.compiler.reset()
            payload = {
                "environment": environment(),
                "shape": [args.batch, 1, args.size, args.size],
                "results": results,
            }
            # After every run, so that an interruption loses nothing.
            write_results(RESULTS / "training_cuda.json", payload)
    print("\n" + table(results))


if __name__ == "__main__":
    main()
