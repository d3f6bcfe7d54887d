"""Options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Logits = Annotated[Path | None, typer.Option(help="Folder of logits.")]
Probs = Annotated[Path | None, typer.Option(help="Folder of probabilities, such as nnU-Net's.")]
Labels = Annotated[Path, typer.Option(help="Folder of label maps with the names of the cases.")]
Images = Annotated[Path | None, typer.Option(help="Folder of images with the names of the cases.")]
AxisOrder = Literal["auto", "zyx", "xyz"]
Axes = Annotated[AxisOrder, typer.Option(help="Axis order of plain arrays.")]
IgnoreLabel = Annotated[int | None, typer.Option(help="Label of voxels to ignore.")]
Method = Annotated[
    str,
    typer.Option(
        help="temperature, distance, class_affine, vector, dirichlet, matrix, inverse, auto (the "
        "best by cross-validation, or none), or package.module:Class of your own."
    ),
]
Region = Annotated[str, typer.Option(help="Voxels to fit on: all, predicted_boundary, …")]
Folds = Annotated[int, typer.Option(help="Folds of the cross-validation; 0 skips it.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampled voxels and the folds.")]
Patient = Annotated[
    str | None, typer.Option(help="Regular expression that finds the patient in a case name.")
]
To = Annotated[
    Literal["nifti", "npz", "both"] | None,
    typer.Option(help="Format of probabilities: NIfTI, nnU-Net's .npz with .pkl, or both."),
]
Jobs = Annotated[int, typer.Option(help="Processes; the result does not depend on it.", min=1)]
Launcher = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Where the --jobs run: processes of this machine, or a Ray cluster."),
]
Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; local starts Ray on this machine.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")]
Checkpoint = Annotated[str, typer.Option(help="best (by validation DSC) or last.")]
Flips = Annotated[
    str, typer.Option(help="Average over mirror images along these axes, such as hw or dhw.")
]
Calibrator = Annotated[
    str | None,
    typer.Option(help="A file of `segcal calibrate`, or a name to fit on validation cases."),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Do not use the calibrator of `segcal train --posthoc`.")
]
Average = Annotated[str, typer.Option(help="What to average: probs or logits.")]


def workers(jobs: int, launcher: str, address: str | None) -> int:
    """What functions take as `jobs`."""
    from segcal.core.jobs import RayJobs

    return RayJobs(jobs, address) if launcher == "ray" else jobs


def one_folder(logits: Path | None, probs: Path | None) -> tuple[Path, bool]:
    """The folder, and whether it holds probabilities."""
    if (logits is None) == (probs is None):
        raise ValueError("give either --logits FOLDER or --probs FOLDER")
    return (logits, False) if logits is not None else (Path(str(probs)), True)


def warn_unused(unused: Sequence[str]) -> None:
    """A warning about label maps without a prediction."""
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        typer.echo(f"{len(unused)} label maps without a prediction are skipped ({shown})", err=True)


def number(value: float | None) -> str:
    """Four digits; a dash for None and NaN."""
    return "–" if value is None or value != value else f"{value:.4g}"


def print_table(table: Any) -> None:
    """Print a rich table; into a file or a pipe it is not cut."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
