"""A training step of the paper's U-Net on a GPU: plain PyTorch beside segcal, stage by stage.

python benchmarks/bench_training.py [--steps N] [--size 192] [--batch 16] [--losses nacl ce_dice]
                                    [--only "plain PyTorch, TF32" "segcal (nacl)"]

Both train on the same generated slices, 16 × 1 × 192 × 192 by default. The baseline is what one
writes by hand: TF32, eager, F.cross_entropy, torch's Adam, and all slices already on the GPU, so
that no loader flatters the comparison; with a DataLoader it stands below.
segcal is its own loop: resident batches, bf16, channels_last, fused losses and Adam, the network
compiled, whole steps replayed as one CUDA graph. Beside them stand segcal with one part switched
off at a time. Whole steps are timed by the clock over many steps with one wait at the end; stages
by events around each of them, in a second pass of steps that are not replayed. Writes
results/training_cuda.json and prints a Markdown table.
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
from segcal.losses.base import add_up
from segcal.models import UNet
from segcal.training.cuda_graph import CapturedStep
from segcal.training.device import make_fabric, numerics, resolve
from segcal.training.loss_meter import CHECK_EVERY
from segcal.training.state import Job, build_job, seed_step

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


def plain_stages(job: Job, *, tf32: bool, on_gpu: bool) -> Stages:
    """The loop one writes by hand, on the slices that segcal's loader holds."""
    loader = job.loader
    assert isinstance(loader, ResidentLoader)
    images, labels = loader.images.float() * loader.scale + loader.offset, loader.labels.long()
    size = job.config.batch_size
    if on_gpu:
        batches = endless(lambda: shuffled(images, labels, size))
    else:
        rows = TensorDataset(images.cpu(), labels.cpu())
        batches = endless(
            lambda: DataLoader(rows, size, shuffle=True, pin_memory=True, drop_last=True)
        )
    net = UNet(2, images.shape[1], job.spec.num_classes).cuda()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> Iterator[str]:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        image, target = (x.cuda(non_blocking=True) for x in next(batches))
        yield "data"
        logits = net(image)
        yield "forward"
        loss = F.cross_entropy(logits, target)
        yield "loss"
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        yield "backward"
        optimiser.step()
        yield "step"

    return step


def segcal_stages(job: Job) -> tuple[Whole, Stages]:
    """The body of `Run.train_epoch`, as it is and cut into its stages."""
    job.start_epoch()
    batches = endless(lambda: job.loader)
    done = iter(range(10**9))
    do_step = CapturedStep(job, print) if job.captured else job.step

    def begin() -> tuple[int, Batch, Tensor, Tensor]:
        number = next(done)
        seed_step(job.config.seed, job.epoch, number, 0)
        batch = next(batches)
        return number, batch, *job.place(batch, number)

    def end(number: int, batch: Batch, terms: dict[str, Tensor]) -> None:
        job.meter.add(terms, batch.case)
        if (number + 1) % CHECK_EVERY == 0:
            job.meter.look()

    def whole() -> None:
        number, batch, image, target = begin()
        end(number, batch, do_step(image, target))

    def stages() -> Iterator[str]:
        number, batch, image, target = begin()
        yield "data"
        heads = job.forward(image)
        yield "forward"
        terms = job.terms(heads, target)
        total = add_up(terms)
        yield "loss"
        job.fabric.backward(total)
        yield "backward"
        job.optimiser.step()
        job.optimiser.zero_grad(set_to_none=True)
        job.update_ema()
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
    """Whole steps by the clock (five blocks), then each stage between events."""
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
        job = build_job(config, make_fabric(config), open_dataset(config.data.path))
        started = time.perf_counter()
        whole, stages = segcal_stages(job)
        whole()
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        return {**measure(whole, stages, steps), "first_step_s": first}


def run_plain(config: TrainConfig, steps: int, **how: bool) -> dict[str, Any]:
    config = config.model_copy(update={"compile": "off"})
    job = build_job(config, make_fabric(config), open_dataset(config.data.path))
    stages = plain_stages(job, **how)

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
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows, by the table's names")
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
            # After every run: what is measured is kept, whatever stops the rest.
            write_results(RESULTS / "training_cuda.json", payload)
    print("\n" + table(results))


if __name__ == "__main__":
    main()
