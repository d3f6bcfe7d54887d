"""Time and extra memory of every loss, forward and backward, compared with torch and MONAI.

python benchmarks/bench_losses.py [--device cpu|cuda] [--repeats N]

Writes results/losses_<device>.json and prints a Markdown table. All losses of one size run in
turns, round after round, so that a slow moment of the machine affects all of them.
"""

import argparse
from collections.abc import Callable

import monai.losses
import torch
import torch.nn.functional as F
from _common import RESULTS, environment, summary, time_once, write_results
from torch import Tensor

from segcal.losses import LOSSES, NACLLoss, make_loss

SIZES = {"2-D": (16, 4, 224, 224), "3-D": (2, 4, 64, 96, 96)}
Run = Callable[[], object]


def candidates(shape: tuple[int, ...], device: str) -> dict[str, Run]:
    """Name → one forward and backward pass on tensors of that shape."""
    logits = torch.randn(shape, device=device, requires_grad=True)
    target = smooth_labels(shape, device)
    theirs = monai.losses.NACLLoss(classes=shape[1], dim=len(shape) - 2).to(device)
    if device == "cuda":  # its filter is a plain attribute, which `.to` does not move
        theirs.svls_layer.filter = theirs.svls_layer.filter.to(device)
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "torch F.cross_entropy": F.cross_entropy,
        "MONAI NACLLoss": theirs,
        **{f"segcal {name}": make_loss(name) for name in LOSSES},
        "segcal nacl, gaussian": NACLLoss(prior="gaussian"),
        "segcal nacl, mode": NACLLoss(prior="mode"),
        "segcal nacl, 5 wide": NACLLoss(patch_size=5),
    }

    def run(loss: Callable[[Tensor, Tensor], Tensor]) -> Run:
        def step() -> None:
            loss(logits, target).backward()
            logits.grad = None  # so that no memory is held between the passes

        return step

    return {name: run(loss) for name, loss in losses.items()}


def smooth_labels(shape: tuple[int, ...], device: str) -> Tensor:
    """Labels in blobs, like organs, instead of noise."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pool = F.avg_pool2d if len(shape) == 4 else F.avg_pool3d
    for _ in range(3):
        noise = pool(noise, 5, stride=1, padding=2)
    return noise.argmax(1).to(device)


def extra_memory(run: Run, device: str) -> int:
    """The highest number of bytes during one pass, above those held before."""
    run()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - held
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def measure(shape: tuple[int, ...], device: str, repeats: int) -> dict[str, dict[str, float]]:
    runs = candidates(shape, device)
    for run in runs.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(time_once(run, device))
    size = 4 * torch.Size(shape).numel()
    rows = {}
    for name, run in runs.items():
        memory = max(extra_memory(run, device) for _ in range(3)) / size
        rows[name] = summary(times[name]) | {"extra_memory_in_logits": memory}
    return rows


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [
        "| loss | " + " | ".join(f"{size} ms | of MONAI | memory" for size in results) + " |",
        "|---|" + "---:|" * (3 * len(results)),
    ]
    for name in next(iter(results.values())):
        cells = []
        for rows in results.values():
            ratio = rows[name]["median_s"] / rows["MONAI NACLLoss"]["median_s"]
            memory = rows[name]["extra_memory_in_logits"]
            cells.append(f"{1e3 * rows[name]['median_s']:.2f} | {ratio:.2f} × | {memory:.1f} ×")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    results = {}
    for name, shape in SIZES.items():
        print(f"{name} {shape} …", flush=True)
        results[name] = measure(shape, args.device, args.repeats)
    payload = {"environment": environment(), "sizes": SIZES, "results": results}
    path = RESULTS / f"losses_{args.device}.json"
    write_results(path, payload)
    print(table(results))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
