"""Steps per second of the recipe `strong`, and what augmentation costs, in 2-D and 3-D.

python benchmarks/bench_recipe.py [--seconds 2] [--compile on|off] [--quick]
                                  [--networks norm_unet monai.DynUNet]

Batches are random tensors on the device: 16 × 1 × 256 × 256 and 2 × 1 × 40 × 192 × 160. Each
network is compiled once and trained with segcal's own step (bf16, channels_last, CUDA graph on
CUDA): without augmentation, with all transforms of the recipe, and with the corresponding
dictionary transforms of MONAI. Compiling takes most of the time. `--quick` uses small images, to
try the script on a CPU.
Writes results/recipe_DEVICE.json and prints a Markdown table.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import RESULTS, environment, write_results

from segcal.config import Named, check_config
from segcal.data import Batch, PhantomSource, open_dataset, prepare
from segcal.training.adapt import choose_levels
from segcal.training.augment import Augmentation
from segcal.training.build import build_state
from segcal.training.cuda_graph import CudaGraphStep
from segcal.training.device import make_fabric, numerics, resolve
from segcal.training.state import TrainingState

SHAPES = {"2-D": (16, 1, 256, 256), "3-D": (2, 1, 40, 192, 160)}
QUICK = {"2-D": (4, 1, 64, 64), "3-D": (2, 1, 16, 48, 32)}
WARMUP = 8
RECIPE = [Named(name="batched")]


def monai_transforms(dims: int) -> list[Named]:
    """MONAI's counterparts of the batched transforms, with the same probabilities and ranges."""
    angles = [0.5236] * (1 if dims == 2 else 3)
    elastic = {
        2: ("Rand2DElasticd", {"prob": 0.2, "spacing": [64, 64], "magnitude_range": [0, 8]}),
        3: ("Rand3DElasticd", {"prob": 0.2, "sigma_range": [5, 7], "magnitude_range": [50, 150]}),
    }[dims]
    pairs: list[tuple[str, dict[str, Any]]] = [
        ("RandAxisFlipd", {"prob": 0.5}),
        ("RandAffined", {
            "prob": 0.5, "rotate_range": angles, "scale_range": [0.3] * dims,
            "translate_range": [20.0] * dims, "padding_mode": "zeros",
        }),
        elastic,
        ("RandScaleIntensityd", {"prob": 0.15, "factors": 0.25}),
        ("RandStdShiftIntensityd", {"prob": 0.15, "factors": 0.25}),
        ("RandAdjustContrastd", {"prob": 0.3, "gamma": [0.7, 1.5], "retain_stats": True}),
        ("RandGaussianNoised", {"prob": 0.1, "std": 0.3}),
        ("RandGaussianSmoothd", {"prob": 0.2, "sigma_x": [0.5, 1], "sigma_y": [0.5, 1]}),
        ("RandSimulateLowResolutiond", {
            "keys": ["image"], "prob": 0.25, "zoom_range": [0.5, 1.0],
            "upsample_mode": "bilinear" if dims == 2 else "trilinear",
        }),
    ]  # fmt: skip
    return [Named(name=name, options=options) for name, options in pairs]


def build(data: Path, network: str, shape: tuple[int, ...], compiled: str) -> TrainingState:
    """The state of a training by the recipe `strong` with this network."""
    size = shape[2:]
    levels = choose_levels(size, (1.0,) * len(size))
    model: dict[str, Any] = {"name": network, "options": levels}
    if network == "monai.DynUNet":
        strides = [[1] * len(size), *levels["strides"]]
        model["options"] = {
            "kernel_size": levels["kernels"], "strides": strides, "filters": levels["filters"],
            "upsample_kernel_size": levels["strides"], "norm_name": "instance",
        }  # fmt: skip
    patch = {"mode": "3d", "patch_size": list(size)} if len(size) == 3 else {"mode": "2d"}
    config = check_config({
        "data": {"path": str(data), **patch}, "model": model, "loss": {"name": "ce"},
        "batch_size": shape[0], "compile": compiled, "ema": 0.999, "clip": 1.0,
        "optimizer": {"name": "adamw", "weight_decay": 0.01, "decay": "cosine"},
    })  # fmt: skip
    config = resolve(config)
    with numerics(config):
        return build_state(config, make_fabric(config), open_dataset(data))


def steps_per_second(
    state: TrainingState, shape: tuple[int, ...], step: Any, budget: float
) -> float:
    device = state.fabric.device
    generator = torch.Generator(device).manual_seed(0)
    image = torch.randn(shape, device=device, generator=generator)
    classes = state.spec.num_classes
    target = torch.randint(classes, (shape[0], *shape[2:]), device=device, generator=generator)
    batch = Batch(image, target, ("case",) * shape[0])

    def train(number: int) -> None:
        state.seed(number)
        terms = step(*state.place(batch, number))
        state.meter.add(terms, batch.case)
        if number % 25 == 0:
            state.meter.fetch()

    for number in range(WARMUP):
        train(number)
    wait(device)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < budget:
        for _ in range(5):
            train(WARMUP + done)
            done += 1
        wait(device)
    return done / (time.perf_counter() - start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--compile", choices=["on", "off"], default="on")
    parser.add_argument("--networks", nargs="+", default=["norm_unet"])
    parser.add_argument("--quick", action="store_true", help="small images")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in (QUICK if args.quick else SHAPES).items():
            dims = len(shape) - 2
            data = Path(folder) / name
            # Only names, classes and sizes of this set are used.
            slices = {"slices": 4} if dims == 3 else {}
            source = PhantomSource(dims=dims, cases=8, size=shape[-1], **slices)
            prepare(source, data, dtype="uint8", workers=1)
            for network in args.networks:
                state = build(data, network, shape, args.compile)
                state.start_epoch()
                step = CudaGraphStep(state, print) if state.cuda_graph else state.step
                variants = {
                    "none": None,
                    "batched": Augmentation(RECIPE, 0),
                    "MONAI": Augmentation(monai_transforms(dims), 0),
                }
                base = 0.0
                for augmentation, transforms in variants.items():
                    state.augment = transforms
                    with numerics(state.config):
                        speed = steps_per_second(state, shape, step, args.seconds)
                    base = base or speed
                    row = {"images": name, "shape": list(shape), "network": network,
                           "augmentation": augmentation, "steps_per_s": speed,
                           "step_ratio": base / speed}  # fmt: skip
                    if cuda:
                        row["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
                    rows.append(row)
                    print(f"{name} {network} {augmentation}: {speed:.2f} steps/s", flush=True)
                del state, step
                torch.compiler.reset()
                if cuda:
                    torch.cuda.empty_cache()
    payload = {"environment": environment(), "compile": args.compile, "results": rows}
    write_results(RESULTS / f"recipe_{'cuda' if cuda else 'cpu'}.json", payload)
    print("\n| images | network | augmentation | steps/s | times a step without |")
    print("|---|---|---|---:|---:|")
    for row in rows:
        images = f"{row['images']} {'×'.join(map(str, row['shape']))}"
        numbers = f"{row['steps_per_s']:.2f} | {row['step_ratio']:.2f}"
        print(f"| {images} | {row['network']} | {row['augmentation']} | {numbers} |")


if __name__ == "__main__":
    main()
