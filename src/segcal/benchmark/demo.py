"""The demo: five losses on phantoms whose true probabilities are known, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segcal.benchmark.benchmark_study import BenchmarkStudy
from segcal.benchmark.local_launcher import cores, visible_gpus
from segcal.benchmark.plan import Plan
from segcal.benchmark.runner import run_benchmark
from segcal.core.errors import PathError
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import PhantomSource, prepare

NOTE = (
    "Generated abdomens, drawn by simulated raters who disagree where the image is ambiguous. The "
    "true probability of every class is known at every voxel, so calibration is measured against "
    "the truth and not only against one rater's labels. Small networks, short training, one seed: "
    "this shows what the report shows, not which method is best on patients."
)
METHODS: dict[str, Any] = {
    "ce_dice": {"loss": "ce_dice", "title": "CE+Dice"},
    "ls": {"loss": "ls", "title": "LS (α=0.1)", "options": {"alpha": 0.1}},
    "svls": {"loss": "svls", "title": "SVLS (σ=2)", "options": {"sigma": 2.0}},
    "mbls": {"loss": "mbls", "title": "MbLS (m=5)", "options": {"margin": 5.0}},
    "nacl": {"loss": "nacl", "title": "NACL (λ=0.1)", "options": {"penalty_weight": 0.1}},
}


def prepare_demo(
    out: Path | str, *, quick: bool = False, progress: ProgressCallback = no_progress
) -> Path:
    """Prepare the phantoms in OUT/data; existing cases are kept."""
    folder = Path(out) / "data"
    if Path(out).is_dir() and not folder.is_dir() and list(Path(out).glob("[!.]*")):
        raise PathError(Path(out), "holds other files", "choose another --out")
    source = PhantomSource(dims=2, cases=14 if quick else 300, size=32 if quick else 64)
    prepare(source, folder, dtype="uint8", workers=1, progress=progress)
    return folder


def run_demo(
    out: Path | str, *, quick: bool = False, jobs: int | None = None, silent: bool = False
) -> BenchmarkStudy:
    """Compare five losses in OUT/study on the phantoms of OUT/data.

    A second call continues an interrupted demo.

    Args:
        quick: fewer and smaller cases, few epochs: to check that everything runs.
        jobs: runs at a time; by default one per GPU, or per core (at most five).
        silent: print nothing.
    """
    return run_benchmark(
        demo_plan(prepare_demo(out, quick=quick), quick),
        Path(out) / "study",
        jobs=jobs or len(visible_gpus()) or min(cores(), len(METHODS)),
        resume=True,
        kind="demo",
        silent=silent,
    )


def demo_plan(data: Path, quick: bool = False) -> Plan:
    """Five losses, one small U-Net, one seed."""
    epochs = 8 if quick else 16
    return Plan.model_validate({
        "title": "segcal demo",
        "note": NOTE,
        "datasets": {"phantom": {"path": str(data), "title": "Phantom"}},
        "methods": METHODS,
        "train": {
            "recipe": "paper",
            "epochs": epochs,
            "batch_size": 8,
            "precision": "32",
            "optimizer": {"name": "adamw", "lr": 5e-3, "warmup": 1, "decay": "cosine"},
            "model": {"name": "norm_unet", "options": {"filters": [16, 32, 64, 128]}},
        },
        "tables": ["main", "classes"],
    })  # fmt: skip
