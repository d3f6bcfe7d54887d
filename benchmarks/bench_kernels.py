"""The fused losses on a GPU, compared with torch, torch.compile and MONAI: time and extra memory.

python benchmarks/bench_kernels.py [--repeats N] [--seconds S] [--only NAME ...]

Every time is that of one step: forward and backward. The floor is the time to read logits and
labels once and to write the gradient once, at the copy bandwidth measured in the same run.
Compiling takes most of the time, so losses are compiled with torch.compile, the most important
first, only while the run is within its share of S seconds. Writes results/kernels_cuda.json and
prints Markdown tables.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import monai.losses
import torch
import torch.nn.functional as F
from _common import RESULTS, environment, write_results
from torch import Tensor, nn

from segcal.losses import CrossEntropyLoss, DiceLoss, NACLLoss, WeightedSum, make_loss
from segcal.losses.kernels import launch as fast_launch

DEVICE = "cuda"
# Small batches in a Python loop, where launching dominates; then sizes where the kernels do.
SMALL = [(2, 4, 128, 128), (16, 4, 224, 224)]
LARGE = [(512, 4, 192, 192), (2, 4, 128, 192, 192), (2, 14, 128, 128, 128)]
ROUNDS = 5
REFERENCE, MONAI = "torch F.cross_entropy", "MONAI NACLLoss"
# In the order in which they are compiled; "NAME + FORM dice" adds Dice to a pixel loss.
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "nacl": ("nacl", {}),
    "ce": ("ce", {}),
    "ce + linear dice": ("ce", {}),
    "ce + proper dice": ("ce", {}),
    "nacl + linear dice": ("nacl", {}),
    "nacl + proper dice": ("nacl", {}),
    "ce + squared dice": ("ce", {}),
    "ce + proper dice over batch": ("ce", {}),
    "ml1_ace": ("ml1_ace", {}),
    "ce_dice_ace": ("ce_dice_ace", {}),
    "svls": ("svls", {}),
    "nacl, gaussian": ("nacl", {"prior": "gaussian"}),
    "mbls": ("mbls", {}),
    "focal": ("focal", {}),
    "ecp": ("ecp", {}),
    "ls": ("ls", {}),
    "nacl, mode": ("nacl", {"prior": "mode"}),
    "nacl, softmax": ("nacl", {"constrain": "softmax"}),
}
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Candidate:
    """A loss, and whether the fast launcher of the kernels is on."""

    loss: Loss
    fast: bool = True

    def step(self, logits: Tensor, target: Tensor) -> None:
        """Forward and backward."""
        fast_launch.ENABLED = self.fast
        torch.autograd.grad(self.loss(logits, target), logits)


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, read and written."""
    source = torch.randn(2**29, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / (1e-6 * median_us(lambda _: target.copy_(source), 20))


def median_us(run: Callable[[int], object], repeats: int) -> float:
    """Median time between two events around `run`, in microseconds."""
    for i in range(5):
        run(i)
    pairs = []
    for i in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(i)
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(1e3 * start.elapsed_time(end) for start, end in pairs)


def inputs(shape: tuple[int, ...], copies: int) -> list[tuple[Tensor, Tensor]]:
    """Several sets, so that a small one does not stay in the cache."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    sets = []
    for _ in range(copies):
        logits = torch.randn(shape, device=DEVICE, generator=generator).requires_grad_()
        noise = torch.randn(shape, device=DEVICE, generator=generator)
        pool = F.avg_pool2d if len(shape) == 4 else F.avg_pool3d
        sets.append((logits, pool(noise, 5, stride=1, padding=2).argmax(1)))
    return sets


def monai_loss(shape: tuple[int, ...]) -> Loss:
    """MONAI's NACL; its filter is a plain attribute, which `.to` does not move."""
    loss = monai.losses.NACLLoss(classes=shape[1], dim=len(shape) - 2)
    loss.svls_layer.filter = loss.svls_layer.filter.to(DEVICE)
    return loss


def own_loss(name: str, fused: bool) -> nn.Module:
    """A loss of `LOSSES`, in the kernels or in torch."""
    key, options = LOSSES[name]
    loss = make_loss(key, fused=fused, **options)
    if " + " not in name:
        return loss
    form, *rest = name.partition(" + ")[2].split()
    return WeightedSum(loss, DiceLoss(form, "batch" if "over" in rest else "image"))  # type: ignore[arg-type]


def nnunet_formula(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy + Dice per image without background, as nnU-Net computes it."""
    probs = logits.softmax(1)
    axes = tuple(range(2, logits.ndim))
    with torch.no_grad():
        truth = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, target.unsqueeze(1), 1)
        truth, sizes = truth[:, 1:], truth[:, 1:].sum(axes)
    probs = probs[:, 1:]
    overlap = (probs * truth).sum(axes)
    dice = (2 * overlap + 1e-5) / (sizes + probs.sum(axes) + 1e-5).clip(1e-8)
    return F.cross_entropy(logits, target) - dice.mean()


def dice_references() -> dict[str, Loss]:
    """Cross-entropy + Dice of MONAI and nnU-Net (its formula if it is not installed)."""
    monai_loss = monai.losses.DiceCELoss(softmax=True, to_onehot_y=True)
    found: dict[str, Loss] = {"MONAI DiceCELoss": lambda x, y: monai_loss(x, y.unsqueeze(1))}
    try:
        from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
        from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
    except ImportError:
        found["nnU-Net's formula"] = nnunet_formula
        return found
    dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
    theirs = DC_and_CE_loss(dice, {}, dice_class=MemoryEfficientSoftDiceLoss)
    found["nnU-Net DC_and_CE_loss"] = lambda x, y: theirs(x, y.unsqueeze(1))
    return found


def candidates(shape: tuple[int, ...]) -> dict[str, Candidate]:
    """The losses without torch.compile; on small batches without the fast launcher, too."""
    found = {REFERENCE: Candidate(F.cross_entropy), MONAI: Candidate(monai_loss(shape))}
    found["segcal nacl, torch"] = Candidate(NACLLoss(fused=False))
    found["segcal ce, torch"] = Candidate(CrossEntropyLoss(fused=False))
    for name in ("ce + linear dice", "ce_dice_ace"):
        if name in LOSSES:
            found[f"segcal {name}, torch"] = Candidate(own_loss(name, fused=False))
    found |= {name: Candidate(loss) for name, loss in dice_references().items()}
    for name in LOSSES:
        if shape in SMALL[:1] and name not in ("nacl", "ce", "ce + linear dice"):
            continue
        fused = own_loss(name, fused=True)
        found[f"segcal {name}"] = Candidate(fused)
        if shape in SMALL:
            found[f"segcal {name}, no fast launch"] = Candidate(fused, fast=False)
    return found


def add_compiled(
    found: dict[str, Candidate], logits: Tensor, target: Tensor, deadline: float
) -> None:
    """Compile the torch code of the losses of `found`, in order, until the deadline."""
    plain = {f"segcal {name}": own_loss(name, fused=False) for name in LOSSES}
    first = dict(list(plain.items())[:2])
    for name, loss in (first | dice_references() | plain).items():
        if name not in found:
            continue
        if time.monotonic() > deadline:
            print(f"  {name} and those after it: not compiled, the time is over", flush=True)
            return
        candidate = Candidate(torch.compile(loss, fullgraph=name in plain, dynamic=False))
        try:
            candidate.step(logits, target)
        except Exception as error:  # the code of another project
            if name in plain:
                raise
            print(f"  {name}: not compiled ({str(error).splitlines()[0]})", flush=True)
            continue
        found[f"{name}, torch.compile"] = candidate


def graph_us(candidate: Candidate, logits: Tensor, target: Tensor, repeats: int) -> float:
    """Replays of a CUDA graph of one step: the time of the kernels without launch gaps."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            candidate.step(logits, target)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        candidate.step(logits, target)
    return median_us(lambda _: graph.replay(), repeats)


def extra_memory(candidate: Candidate, logits: Tensor, target: Tensor) -> float:
    """Highest extra memory of a step, in multiples of the logits."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    candidate.step(logits, target)
    return (torch.cuda.max_memory_allocated() - held) / logits.nbytes


def measure(
    shape: tuple[int, ...], bandwidth: float, repeats: int, deadline: float
) -> dict[str, Any]:
    sets = inputs(shape, 8 if shape in SMALL else 1)
    logits, target = sets[0]
    floor = 1e6 * (2 * logits.nbytes + target.nbytes) / bandwidth
    losses = candidates(shape)
    add_compiled(losses, logits, target, deadline)
    # In turns: if the host is slow for a while, it is slow for all of them.
    rounds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(ROUNDS):
        for name, candidate in losses.items():
            each = median_us(lambda i, c=candidate: c.step(*sets[i % len(sets)]), repeats)
            rounds[name].append(each)
    rows = {}
    for name, candidate in losses.items():
        row: dict[str, Any] = {
            "median_us": statistics.median(rounds[name]),
            "rounds_us": rounds[name],
            "extra_memory_in_logits": extra_memory(candidate, logits, target),
        }
        if candidate.fast and "MONAI" not in name and "nnU-Net D" not in name:
            # The losses of others read values from the GPU and cannot be captured.
            row["graph_us"] = graph_us(candidate, logits, target, repeats)
        row["over_floor"] = row.get("graph_us", row["median_us"]) / floor
        rows[name] = row
        graph = f", {row['graph_us']:.0f} in a graph" if "graph_us" in row else ""
        spread = f"{min(rounds[name]):.0f} to {max(rounds[name]):.0f}"
        print(f"  {name}: {row['median_us']:.0f} µs ({spread}){graph}", flush=True)
    return {"floor_us": floor, "losses": rows}


def table(shape: tuple[int, ...], result: dict[str, Any]) -> str:
    rows = result["losses"]
    lines = [
        f"{shape}, floor {result['floor_us']:.0f} µs:",
        "",
        "| loss | µs | over floor | of F.cross_entropy | of MONAI | of torch.compile | "
        "in a graph | extra memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        graph = f" ({row['graph_us']:.0f} in a graph)" if "graph_us" in row else ""
        torch_ratio = row["median_us"] / rows[REFERENCE]["median_us"]
        monai_ratio = row["median_us"] / rows[MONAI]["median_us"]
        other = rows.get(f"{name.removesuffix(', no fast launch')}, torch.compile")
        eager = f"{row['median_us'] / other['median_us']:.2f} ×" if other else ""
        both = other and "graph_us" in row and "graph_us" in other
        captured = f"{row['graph_us'] / other['graph_us']:.2f} ×" if both else ""
        lines.append(
            f"| {name} | {row['median_us']:.0f}{graph} | {row['over_floor']:.2f} × | "
            f"{torch_ratio:.2f} × | {monai_ratio:.3f} × | {eager} | {captured} | "
            f"{row['extra_memory_in_logits']:.2f} × |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=80.0, help="no more compiling after this")
    parser.add_argument("--only", nargs="+", choices=list(LOSSES), help="losses to measure")
    parser.add_argument("--out", default="kernels_cuda.json", help="name in results/")
    args = parser.parse_args()
    for name in set(LOSSES) - set(args.only or LOSSES):
        del LOSSES[name]
    # All losses share one `forward`, and each is compiled for each size.
    torch._dynamo.config.cache_size_limit = 256
    start = time.monotonic()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    results = {}
    sizes = [*SMALL, *LARGE]
    for number, shape in enumerate(sizes, start=1):
        print(f"{shape}, after {time.monotonic() - start:.0f} s", flush=True)
        deadline = start + args.seconds * number / len(sizes)
        key = "x".join(map(str, shape))
        results[key] = measure(shape, bandwidth, args.repeats, deadline)
        torch.cuda.empty_cache()
        payload = {
            "environment": environment(),
            "copy_bandwidth": bandwidth,
            "results": results,
        }
        write_results(RESULTS / args.out, payload)
    for shape in sizes:
        print("\n" + table(shape, results["x".join(map(str, shape))]))
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
