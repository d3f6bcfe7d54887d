"""Fits on 50 million voxels in bounded memory, and each method beside netcal on one sample.

    python benchmarks/bench_posthoc.py [--voxels 50000000] [--out FILE]

Every fit runs in a process of its own, whose peak memory is the fit's. Cases are generated one at a
time, as files would be read, so no process ever holds all voxels.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, environment, summary, time_once, write_results

CLASSES = 4
CASE = (50, 100, 100)  # half a million voxels
TRUE_TEMPERATURE = 2.5
SAMPLE = 1_000_000
METHODS = ("temperature", "vector", "dirichlet", "matrix", "local")


class Cases:
    """Calibrated logits times the true temperature, made anew in every pass; float32."""

    def __init__(self, voxels: int) -> None:
        self.count = max(voxels // int(np.prod(CASE)), 1)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (make_case(seed) for seed in range(self.count))


def make_case(seed: int, shape: tuple[int, ...] = CASE) -> tuple[Any, Any]:
    """Mostly background, as scans are; labels drawn from the softmax."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((CLASSES, *shape), dtype=np.float32) * 1.5
    logits[0] += 3
    e = np.exp(logits)
    cdf = e.cumsum(0) / e.sum(0)
    target = (rng.random(shape, dtype=np.float32) > cdf).sum(0).clip(max=CLASSES - 1)
    return logits * np.float32(TRUE_TEMPERATURE), target.astype(np.uint8)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit_many(method: str, voxels: int, sampled: bool) -> dict[str, Any]:
    """One fit on generated cases; in the process of `--one`."""
    from segcal.posthoc import make_calibrator

    cases = Cases(voxels)
    next(iter(cases))  # the memory of one case is the generator's, not the fit's
    start_mib = peak_mib()
    making = time_once(lambda: [None for _ in cases])
    calibrator = make_calibrator(method)
    start = time.perf_counter()
    calibrator.fit(cases, max_voxels=SAMPLE if sampled else None)
    seconds = time.perf_counter() - start
    report = calibrator.report
    assert report is not None
    return {
        "method": method,
        "voxels": report.voxels,
        "used": report.used,
        "mode": "sample" if sampled else "stream",
        "seconds": seconds,
        "seconds_to_generate_one_pass": making,
        "iterations": report.iterations,
        "peak_mib": peak_mib(),
        "peak_mib_before": start_mib,
        "params": calibrator.params(),
        "nll": [report.nll_before, report.nll_after],
    }


def sample_rows(size: int) -> tuple[Any, Any]:
    logits, target = make_case(0, (size,))
    return logits.astype(np.float64), target.astype(np.int64)


def fit_beside(size: int, repeats: int) -> list[dict[str, Any]]:
    """The same sample, already in memory, for each method and for netcal."""
    from netcal.scaling import TemperatureScaling as Netcal

    from segcal.posthoc import make_calibrator

    logits, target = sample_rows(size)
    e = np.exp(logits - logits.max(0))
    probs = e / e.sum(0)
    rows = np.ascontiguousarray(probs.T)

    def nll(calibrated: Any) -> float:
        picked = np.take_along_axis(calibrated, target[None], 0)
        return float(-np.log(np.maximum(picked, 1e-12)).mean())

    out = []
    for method in ("temperature", "vector", "dirichlet"):

        def run(method: str = method) -> Any:
            return make_calibrator(method).fit(
                [(probs, target)], from_probs=True, max_voxels=2 * size
            )

        found = run()
        times = [time_once(run) for _ in range(repeats)]
        after = nll(found.transform(probs, from_probs=True))
        out.append({"library": "segcal", "method": method, **summary(times), "nll": after})

    def fit_netcal() -> Any:
        other = Netcal()
        other.fit(rows, target)
        return other

    other = fit_netcal()
    times = [time_once(fit_netcal) for _ in range(repeats)]
    after = nll(other.transform(rows).T)
    out.append({"library": "netcal", "method": "temperature", **summary(times), "nll": after})
    return out


def in_own_process(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voxels", type=int, default=50_000_000)
    parser.add_argument("--beside", type=int, default=500_000, help="voxels beside netcal")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "posthoc_cpu.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one == "beside":
        print(json.dumps(fit_beside(asked.beside, asked.repeats)))
        return
    if asked.one:
        print(json.dumps(fit_many(asked.one, asked.voxels, not asked.stream)))
        return
    large = []
    for method in METHODS:
        large.append(in_own_process("--one", method, "--voxels", asked.voxels))
        print(large[-1], flush=True)
    for voxels in (asked.voxels // 10, asked.voxels):
        large.append(in_own_process("--one", "temperature", "--voxels", voxels, "--stream"))
        print(large[-1], flush=True)
    beside = in_own_process("--one", "beside", "--beside", asked.beside, "--repeats", asked.repeats)
    for row in beside:
        print(row, flush=True)
    write_results(
        asked.out,
        {
            "what": f"fits on {asked.voxels:,} voxels, K = {CLASSES}, true temperature "
            f"{TRUE_TEMPERATURE}; and on {asked.beside:,} voxels beside netcal",
            "environment": environment(),
            "large": large,
            "beside": {"voxels": asked.beside, "rows": beside},
        },
    )


if __name__ == "__main__":
    main()
