"""The metrics against MONAI, MedPy and torchmetrics, and their cost per voxel. One run:

python benchmarks/bench_metrics.py

Prints a table (medians and quartiles) and writes benchmarks/results/metrics_<cpu or cuda>.json.
With --hd95, HD95 instead, in CPU seconds of one thread (hd95_cpu.json).
Other libraries get their input in the form they like best, made outside the timing.
"""

import argparse
import gc
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import RESULTS, environment, summary, time_median, write_results
from rich.console import Console
from rich.table import Table
from scipy.ndimage import gaussian_filter, map_coordinates

from segcal.metrics import all_surface_distances, evaluate_case, voxel_statistics

warnings.filterwarnings("ignore")
SHAPE = (128, 192, 192)


def ellipsoid(shape: tuple[int, ...], centre: tuple[float, ...], radii: tuple[float, ...]) -> Any:
    axes = np.meshgrid(*map(np.arange, shape), indexing="ij", sparse=True)
    return sum(((x - c) / r) ** 2 for x, c, r in zip(axes, centre, radii, strict=True)) < 1


def label_map(shift: int) -> np.ndarray:
    """Three structures, the size of a tumour and its parts; `shift` moves and deforms them."""
    labels = np.zeros(SHAPE, np.uint8)
    s = shift
    labels[ellipsoid(SHAPE, (60 + s, 90, 90 - s), (45, 60 + s, 60))] = 1
    labels[ellipsoid(SHAPE, (60, 80 + s, 90), (20 + s, 30, 30))] = 2
    labels[ellipsoid(SHAPE, (70 + s, 120, 100 - s), (15, 20, 25 + s))] = 3
    return labels


def deformed(labels: np.ndarray, voxels: tuple[float, ...], sigma: float) -> np.ndarray:
    """The labels after a smooth random displacement of so many voxels (standard deviation)."""
    rng = np.random.default_rng(0)
    places = np.indices(labels.shape).astype(np.float32)
    for axis, amount in enumerate(voxels):
        if amount:
            field = gaussian_filter(rng.normal(size=labels.shape).astype(np.float32), sigma)
            places[axis] += field * (amount / field.std())
    return map_coordinates(labels, places, order=0, mode="nearest")


def cardiac_map() -> np.ndarray:
    """Right ventricle, ring and left ventricle on the grid of a scan of ACDC."""
    shape = (10, 256, 216)
    labels = np.zeros(shape, np.uint8)
    labels[ellipsoid(shape, (5, 120, 85), (5, 30, 28))] = 1
    labels[ellipsoid(shape, (5, 120, 125), (5, 32, 32))] = 2
    labels[ellipsoid(shape, (5, 120, 125), (5, 23, 23))] = 3
    return labels


def hippocampus_map() -> np.ndarray:
    """Two adjacent structures on the grid of a crop of the Decathlon's hippocampus set."""
    shape = (35, 51, 35)
    labels = np.zeros(shape, np.uint8)
    labels[ellipsoid(shape, (17, 16, 17), (7, 10, 8))] = 1
    labels[ellipsoid(shape, (17, 33, 17), (6, 14, 7))] = 2
    return labels


def abdomen_map() -> np.ndarray:
    """13 structures in 16 million voxels."""
    shape, rng = (250, 256, 256), np.random.default_rng(0)
    labels = np.zeros(shape, np.uint8)
    for k in range(1, 14):
        labels[ellipsoid(shape, rng.uniform(60, 190, 3), rng.uniform(15, 40, 3))] = k
    return labels


def bench_hd95(
    labels: np.ndarray,
    target: np.ndarray,
    spacing_mm: tuple[float, float, float],
    repeats: int,
    with_medpy: bool = True,
) -> dict[str, Any]:
    """HD95 of all classes."""
    from medpy.metric.binary import hd95
    from monai.metrics import compute_hausdorff_distance

    classes = int(target.max()) + 1
    spread = [
        torch.nn.functional.one_hot(torch.from_numpy(x).long(), classes).to(torch.uint8)
        for x in (labels, target)
    ]
    spread = [x.movedim(-1, 0)[None].contiguous() for x in spread]
    masks = [(labels == k, target == k) for k in range(1, classes)]

    def ours() -> Any:
        return all_surface_distances(labels, target, classes, spacing_mm)

    def monai() -> Any:
        return compute_hausdorff_distance(*spread, percentile=95, spacing=spacing_mm)

    def medpy() -> Any:
        return [hd95(a, b, spacing_mm) for a, b in masks]

    found = ours()
    np.testing.assert_allclose([d.hd95("max") for d in found.values()], monai()[0], rtol=1e-5)
    both = {"segcal": lambda: [(d.hd95(), d.hd95("max")) for d in ours().values()], "monai": monai}
    times = alternate(both, repeats, time.process_time)
    if with_medpy:
        np.testing.assert_allclose([d.hd95() for d in found.values()], medpy(), rtol=1e-9)
        times |= alternate({"medpy": medpy}, 1, time.process_time)
    return with_ratios(times)


def bench_all_hd95(repeats: int) -> dict[str, Any]:
    """Large structures that disagree by 2 to 14 voxels, and three typical predictions."""
    out = {
        f"hd95, surfaces {shift} voxels apart": bench_hd95(
            label_map(shift), label_map(0), (1.0, 1.0, 1.0), repeats
        )
        for shift in (2, 8, 14)
    }
    heart, small, abdomen = cardiac_map(), hippocampus_map(), abdomen_map()
    out["hd95, cardiac MR, 10×256×216, 3 structures"] = bench_hd95(
        deformed(heart, (0, 1.5, 1.5), 8), heart, (10.0, 1.5, 1.5), 3 * repeats
    )
    out["hd95, hippocampus, 35×51×35, 2 structures"] = bench_hd95(
        deformed(small, (1, 1, 1), 4), small, (1.0, 1.0, 1.0), 3 * repeats
    )
    for spacing_mm in ((1.5, 1.5, 1.5), (2.5, 0.8, 0.8)):
        name = f"hd95, 250×256×256, 13 structures, spacing {spacing_mm}"
        moved = deformed(abdomen, (1.5, 1.5, 1.5), 8)
        out[name] = bench_hd95(moved, abdomen, spacing_mm, repeats, with_medpy=False)
    return out


def random_probs(voxels: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(3 * torch.randn((4, *voxels), generator=generator), 0)
    return probs, torch.randint(0, 4, voxels, generator=generator)


def bench_calibration(repeats: int) -> dict[str, Any]:
    """ECE, CECE, Brier and NLL together, against the ECE of torchmetrics alone."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, target = random_probs(SHAPE)

    def ours() -> Any:
        both = voxel_statistics(probs, target, 4)
        return both.bins.ece(), both.bins.cece(), both.scores.brier(), both.scores.nll()

    def theirs() -> Any:
        return multiclass_calibration_error(probs[None], target[None], 4, n_bins=15)

    return with_ratios(alternate({"segcal": ours, "torchmetrics": theirs}, repeats))


def bench_case(repeats: int) -> dict[str, Any]:
    """All metrics in all regions of one cardiac volume, 10×224×224."""
    shape = (10, 224, 224)
    target = np.zeros(shape, np.int64)
    target[ellipsoid(shape, (5, 110, 90), (5, 35, 30))] = 1
    target[ellipsoid(shape, (5, 110, 130), (5, 40, 40))] = 2
    target[ellipsoid(shape, (5, 110, 130), (5, 28, 28))] = 3
    near = np.eye(4)[np.roll(target, 2, 1)].transpose(3, 0, 1, 2)
    logits = 6 * near + np.random.default_rng(0).normal(size=near.shape)
    probs = torch.softmax(torch.from_numpy(logits).float(), 0)
    run = lambda: evaluate_case(probs, target, (10.0, 1.5, 1.5), case="bench")  # noqa: E731
    return {"segcal": time_median(run, repeats)}


def bench_scaling(device: str, millions: list[int], repeats: int) -> list[dict[str, Any]]:
    """Time and memory of `measure`, 1 to 64 million voxels of 4 classes."""
    out = []
    for million in millions:
        probs, target = (x.to(device) for x in random_probs((million * 1_000_000,)))

        def update(probs: torch.Tensor = probs, target: torch.Tensor = target) -> None:
            voxel_statistics(probs, target, 4)

        times = time_median(update, repeats)
        tracemalloc.start()
        update()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        out.append({
            "million_voxels": million,
            **times,
            "ns_per_voxel": 1e3 * times["median_s"] / million,
            "peak_host_mib": peak / 2**20,
        })  # fmt: skip
        del probs, target, update
        gc.collect()
    return out


def alternate(
    runs: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Median and quartiles of each, timed in turn: other work on the machine slows all alike."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: summary(seconds) for name, seconds in times.items()}


def with_ratios(times: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The times, and how many times longer the others took (at the medians)."""
    ours = times["segcal"]["median_s"]
    ratios = {name: t["median_s"] / ours for name, t in times.items() if name != "segcal"}
    return {**times, "times_slower": ratios}


def show(results: dict[str, Any]) -> None:
    grid = Table("what", "who", "median s", "q1–q3 s", "other / segcal")
    for what, entry in results.items():
        if isinstance(entry, list):
            for row in entry:
                grid.add_row(
                    f"{what}, {row['million_voxels']} M voxels",
                    f"{row['peak_host_mib']:.0f} MiB",
                    f"{row['median_s']:.3f}",
                    f"{row['q1_s']:.3f}–{row['q3_s']:.3f}",
                    f"{row['ns_per_voxel']:.0f} ns/voxel",
                )
            continue
        for who, t in entry.items():
            if who != "times_slower":
                ratio = entry.get("times_slower", {}).get(who)
                grid.add_row(
                    what,
                    who,
                    f"{t['median_s']:.3f}",
                    f"{t['q1_s']:.3f}–{t['q3_s']:.3f}",
                    f"{ratio:.1f}" if ratio else "",
                )
    Console().print(grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="of the scaling curve: cpu or cuda")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--hd95", action="store_true", help="HD95 against MONAI and MedPy")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.hd95:
        torch.set_num_threads(1)
        results = bench_all_hd95(options.repeats)
        show(results)
        payload = {"environment": environment(), "results": results}
        write_results(options.out or RESULTS / "hd95_cpu.json", payload)
        return
    if options.device == "cpu":
        results["ece+cece+brier+nll"] = bench_calibration(options.repeats)
        results["evaluate_case 10×224×224"] = bench_case(options.repeats)
    results["scaling"] = bench_scaling(
        options.device, options.millions, max(options.repeats // 2, 1)
    )
    show(results)
    out = options.out or RESULTS / f"metrics_{options.device}.json"
    write_results(out, {"environment": environment(), "shape": SHAPE, "results": results})


if __name__ == "__main__":
    main()
