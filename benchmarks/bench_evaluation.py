"""One cardiac volume through all metrics in all regions, and what threads bring. One run:

python benchmarks/bench_evaluation.py

Prints a table (medians and quartiles) and writes benchmarks/results/evaluation_<cpu or cuda>.json.
With --audit, the audit of one case of 16 million voxels and 14 classes instead: seconds and memory.
The bar: a volume of 10×192×192 with 4 classes below 0.5 s on two cores.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from _common import RESULTS, environment, time_median, write_results
from bench_metrics import ellipsoid
from rich.console import Console
from rich.table import Table
from scipy.ndimage import gaussian_filter, zoom
from scipy.special import softmax

from segcal.evaluation import PredictedCase, predict_case, write_evaluation
from segcal.evaluation.case_metrics import evaluate_predicted_case
from segcal.metrics import CaseOptions
from segcal.models import NetworkSpec, make_model

SHAPE, SPACING = (10, 192, 192), (10.0, 1.5, 1.5)
WHO = {"run": "bench", "method": "bench", "seed": 0, "dataset": "bench"}
GROUPS = {"RV": (1,), "MYO": (2,), "LV": (3,)}


def cardiac(name: str, device: str, seed: int = 0) -> PredictedCase:
    """A right ventricle, a ring and a left ventricle, predicted two voxels off, with noise."""
    target = np.zeros(SHAPE, np.uint8)
    target[ellipsoid(SHAPE, (5, 96, 70), (5, 35, 30))] = 1
    target[ellipsoid(SHAPE, (5, 96, 110), (5, 40, 40))] = 2
    target[ellipsoid(SHAPE, (5, 96, 110), (5, 28, 28))] = 3
    near = np.eye(4, dtype=np.float32)[np.roll(target, 2, 1)].transpose(3, 0, 1, 2)
    noise = np.random.default_rng(seed).normal(size=near.shape).astype(np.float32)
    logits = torch.from_numpy(6 * near + noise).to(device)
    return PredictedCase(name, logits.softmax(0), target, SPACING, noise[:1], logits)


def bench_many(workers: int, cases: int, device: str, repeats: int) -> dict[str, float]:
    """Seconds per case of the writer, files included, with that many threads."""
    ready = [cardiac(f"case {i}", device, i) for i in range(cases)]

    def stream() -> Iterator[PredictedCase]:
        yield from ready

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_evaluation(
                stream(), folder, **WHO, labels=["background", "RV", "MYO", "LV"], jobs=workers
            )

    times = time_median(run, repeats)
    return {key: seconds / cases for key, seconds in times.items()}


def bench_network(device: str, repeats: int) -> dict[str, float]:
    """The paper's U-Net on the ten slices."""
    model = make_model(NetworkSpec("unet", 2, 1, 4)).to(device).eval()
    image = torch.randn(1, *SHAPE, device=device)
    return time_median(lambda: predict_case(model, image), repeats, device=device)


# A small process starts the command: Linux counts the memory of the process that starts another as
# memory of that other, and this one has had large arrays.
_PRINT_MEMORY = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def bench_audit(jobs: int = 1, cases: int = 1) -> dict[str, float]:
    """`segcal audit` of large half-precision files: seconds and GB (of the largest process)."""
    shape, classes = (250, 256, 256), 14
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for folder in ("probs", "labels"):
            (root / folder).mkdir()
        target = np.zeros(shape, np.uint8)
        for k in range(1, classes):
            target[ellipsoid(shape, rng.uniform(60, 190, 3), rng.uniform(15, 40, 3))] = k
        probs = np.empty((classes, *shape), np.float32)
        for k in range(classes):
            coarse = rng.normal(size=[n // 5 for n in shape]).astype(np.float32)
            scale = [n / (n // 5) for n in shape]
            probs[k] = zoom(coarse, scale, order=1) + 14 * gaussian_filter(1.0 * (target == k), 2)
        probs = softmax(probs, axis=0).astype(np.float16)
        for i in range(cases):
            np.savez_compressed(root / "probs" / f"case{i}.npz", probabilities=probs)
            nib.save(nib.Nifti1Image(target.T, np.eye(4)), root / "labels" / f"case{i}.nii.gz")
        del probs
        command = [sys.executable, "-m", "segcal", "audit", "--jobs", str(jobs)]
        for option in ("probs", "labels", "out"):
            command += [f"--{option}", str(root / option)]
        start = time.perf_counter()
        measured = [sys.executable, "-c", _PRINT_MEMORY, *command]
        kibibytes = subprocess.run(measured, check=True, capture_output=True, text=True).stdout
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "gigabytes": int(kibibytes) * 1024 / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--audit", action="store_true", help="the audit of a large case")
    options = parser.parse_args()
    if options.audit:
        found = {
            f"{cases} cases, {jobs} jobs": bench_audit(jobs, cases)
            for jobs, cases in ((1, 1), (1, 4), (2, 4))
        }
        for what, values in found.items():
            print(f"{what}: {values['seconds']:.1f} s, {values['gigabytes']:.2f} GB")
        payload = {"environment": environment(), "results": found}
        write_results(RESULTS / "audit_cpu.json", payload)
        return
    case = cardiac("case", options.device)
    results: dict[str, dict[str, float]] = {
        "all metrics of one volume": time_median(
            lambda: evaluate_predicted_case(case, WHO, GROUPS, CaseOptions()), options.repeats
        ),
        "the paper's U-Net on one volume": bench_network(options.device, options.repeats),
    }
    for workers in options.workers:
        results[f"a case of many, {workers} threads"] = bench_many(
            workers, options.cases, options.device, max(options.repeats // 2, 1)
        )
    grid = Table("what", "median s", "q1–q3 s")
    for what, t in results.items():
        grid.add_row(what, f"{t['median_s']:.3f}", f"{t['q1_s']:.3f}–{t['q3_s']:.3f}")
    Console().print(grid)
    payload = {"environment": environment(), "shape": SHAPE, "results": results}
    write_results(RESULTS / f"evaluation_{options.device}.json", payload)


if __name__ == "__main__":
    main()
