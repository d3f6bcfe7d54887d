"""The fused losses on a GPU beside torch and MONAI: time over the floor, and extra memory.

python benchmarks/bench_kernels.py [--repeats N]

The floor is the time to read logits and labels once and write the gradient once at the copy
bandwidth measured in the same run. Writes results/kernels_cuda.json and prints Markdown tables.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import monai.losses
import torch
import torch.nn.functional as F
from _common import RESULTS, environment, write_results
from torch import Tensor

from segcal.losses import LOSSES, NACLLoss, make_loss

SIZES = [(16, 4, 224, 224), (512, 4, 192, 192), (2, 4, 128, 192, 192), (2, 14, 128, 128, 128)]
SMALL = SIZES[0]
ROUNDS = 5
Loss = Callable[[Tensor, Tensor], Tensor]


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, read and written."""
    source = torch.randn(2**29, device="cuda")
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
    """Several sets, so that a small one does not live in the cache."""
    generator = torch.Generator("cuda").manual_seed(0)
    sets = []
    for _ in range(copies):
        logits = torch.randn(shape, device="cuda", generator=generator).requires_grad_()
        noise = torch.randn(shape, device="cuda", generator=generator)
        pool = F.avg_pool2d if len(shape) == 4 else F.avg_pool3d
        sets.append((logits, pool(noise, 5, stride=1, padding=2).argmax(1)))
    return sets


def candidates(shape: tuple[int, ...]) -> dict[str, Loss]:
    theirs = monai.losses.NACLLoss(classes=shape[1], dim=len(shape) - 2)
    theirs.svls_layer.filter = theirs.svls_layer.filter.cuda()
    fused = {f"segcal {name}": make_loss(name, fused=True) for name in LOSSES if name != "ce_dice"}
    return {
        "torch F.cross_entropy": F.cross_entropy,
        "MONAI NACLLoss": theirs,
        "segcal nacl, plain": NACLLoss(fused=False),
        **fused,
        "segcal nacl, gaussian": NACLLoss(prior="gaussian", fused=True),
        "segcal nacl, mode": NACLLoss(prior="mode", fused=True),
        "segcal nacl, softmax": NACLLoss(constrain="softmax", fused=True),
    }


def step(loss: Loss, logits: Tensor, target: Tensor) -> None:
    torch.autograd.grad(loss(logits, target), logits)


def graph_us(loss: Loss, logits: Tensor, target: Tensor, repeats: int) -> float:
    """Replays of a CUDA graph of one step: what the kernels take without launch gaps."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step(loss, logits, target)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(loss, logits, target)
    return median_us(lambda _: graph.replay(), repeats)


def extra_memory(loss: Loss, logits: Tensor, target: Tensor) -> float:
    """Highest extra memory of a step, in multiples of the logits."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(loss, logits, target)
    return (torch.cuda.max_memory_allocated() - held) / logits.nbytes


def measure(shape: tuple[int, ...], bandwidth: float, repeats: int) -> dict[str, object]:
    sets = inputs(shape, 8 if shape == SMALL else 1)
    logits, target = sets[0]
    floor = 1e6 * (2 * logits.nbytes + target.nbytes) / bandwidth
    losses = candidates(shape)
    # In turns: a host that is slow for a while is slow for all of them.
    rounds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(ROUNDS):
        for name, loss in losses.items():
            each = median_us(lambda i, f=loss: step(f, *sets[i % len(sets)]), repeats)
            rounds[name].append(each)
    rows = {}
    for name, loss in losses.items():
        row: dict[str, Any] = {
            "median_us": statistics.median(rounds[name]),
            "rounds_us": rounds[name],
            "extra_memory_in_logits": extra_memory(loss, logits, target),
        }
        if not name.startswith("MONAI"):  # whose loss cannot be captured
            row["graph_us"] = graph_us(loss, logits, target, repeats)
        row["over_floor"] = row.get("graph_us", row["median_us"]) / floor
        rows[name] = row
        graph = f", {row['graph_us']:.0f} in a graph" if "graph_us" in row else ""
        spread = f"{min(rounds[name]):.0f} to {max(rounds[name]):.0f}"
        print(f"  {name}: {row['median_us']:.0f} µs ({spread}){graph}", flush=True)
    return {"floor_us": floor, "losses": rows}


def table(shape: tuple[int, ...], result: dict) -> str:
    rows = result["losses"]
    lines = [
        f"{shape}, floor {result['floor_us']:.0f} µs:",
        "",
        "| loss | µs | over floor | of F.cross_entropy | of MONAI | extra memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        graph = f" ({row['graph_us']:.0f} in a graph)" if "graph_us" in row else ""
        torch_ratio = row["median_us"] / rows["torch F.cross_entropy"]["median_us"]
        monai_ratio = row["median_us"] / rows["MONAI NACLLoss"]["median_us"]
        lines.append(
            f"| {name} | {row['median_us']:.0f}{graph} | {row['over_floor']:.2f} × | "
            f"{torch_ratio:.2f} × | {monai_ratio:.3f} × | {row['extra_memory_in_logits']:.2f} × |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    results = {}
    for shape in SIZES:
        print(shape, flush=True)
        results["x".join(map(str, shape))] = measure(shape, bandwidth, args.repeats)
        torch.cuda.empty_cache()
        payload = {
            "environment": environment(),
            "copy_bandwidth": bandwidth,
            "results": results,
        }
        write_results(RESULTS / "kernels_cuda.json", payload)
    for shape in SIZES:
        print("\n" + table(shape, results["x".join(map(str, shape))]))


if __name__ == "__main__":
    main()
