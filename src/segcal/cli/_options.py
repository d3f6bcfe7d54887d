"""Options that several commands share."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from segcal.core.text import count, first_few

Logits = Annotated[Path | None, typer.Option(help="Folder of logits.")]
Probs = Annotated[Path | None, typer.Option(help="Folder of probabilities, such as nnU-Net's.")]
Labels = Annotated[Path, typer.Option(help="Folder of label maps with the names of the cases.")]
Images = Annotated[Path | None, typer.Option(help="Folder of images with the names of the cases.")]
AxisOrder = Literal["auto", "zyx", "xyz"]
Axes = Annotated[AxisOrder, typer.Option(help="Axis order of plain arrays.")]
OptionalLabels = Annotated[Path | None, typer.Option(help="Folder of label maps of the cases.")]
Runs = Annotated[
    list[Path], typer.Argument(help="A run, several to average, or a folder of folds.")
]
Classes = Annotated[
    str | None, typer.Option(help="Names of the classes, background first: background,RV,MYO.")
]
Report = Annotated[bool, typer.Option(help="Write the report at the end.")]
IgnoreLabel = Annotated[int | None, typer.Option(help="Label of voxels to ignore.")]
Heads = Annotated[
    str | None,
    typer.Option(
        help="Sigmoid outputs: the labels of each, such as 'whole tumor=1+2+3,core=2+3'. Default: "
        "the regions in nnU-Net's dataset.json beside the predictions."
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="temperature, distance, mixture, class_affine, vector, dirichlet, matrix, inverse, "
        "auto (the best by cross-validation, or none), or package.module:Class of your own."
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
    typer.Option(help="Where the --jobs run: processes on this machine, or a Ray cluster."),
]
Address = Annotated[
    str | None, typer.Option(help="Address of the Ray cluster; local starts Ray here.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")]
Checkpoint = Annotated[str, typer.Option(help="best (chosen by validation) or last.")]
Flips = Annotated[
    str, typer.Option(help="Average over mirror images along these axes, such as hw or dhw.")
]
Calibrator = Annotated[
    str | None,
    typer.Option(
        help="A file of `segcal calibrate`, a method to fit on validation cases, or auto."
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Do not use the calibrator of `segcal train --posthoc`.")
]
Average = Annotated[str, typer.Option(help="What to average: probs or logits.")]


def workers(jobs: int, launcher: str, address: str | None, device: str = "cpu") -> int:
    """What functions take as `jobs`."""
    from segcal.core.jobs import RayJobs

    return RayJobs(jobs, address, gpus=device != "cpu") if launcher == "ray" else jobs


def split_names(text: str | None) -> list[str] | None:
    """Names that are separated by commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def warn(line: str) -> None:
    """Print a line on stderr."""
    typer.echo(f"segcal: {line}", err=True)


def one_folder(logits: Path | None, probs: Path | None) -> tuple[Path, bool]:
    """The folder, and whether it holds probabilities."""
    if (logits is None) == (probs is None):
        raise ValueError("give either --logits FOLDER or --probs FOLDER")
    return (logits, False) if logits is not None else (Path(str(probs)), True)


def given_heads(text: str | None) -> dict[str, tuple[int, ...]] | None:
    """The value of --heads."""
    from segcal.core.heads import parse_heads

    return None if text is None else parse_heads(text)


def warn_unused(unused: Sequence[str]) -> None:
    """A warning about label maps without a prediction."""
    if unused:
        number = count(len(unused), "label map")
        warn(f"skipped {number} without a prediction ({first_few(unused)})")


def warn_patients(cases: Iterable[str], patient: str | None) -> None:
    """A warning about scans that look like those of one patient but count as patients."""
    from segcal.core.patients import scans_of_patients

    alike = scans_of_patients(cases) if patient is None else []
    if len(alike) > 1:  # the cases of a single group are rather those of one data set
        first, second, pattern = alike[0]
        line = f"{first} and {second} look like scans of one patient, but count as two patients"
        warn(f"{line}, so intervals are too narrow; add --patient '{pattern}'")


def warn_identical(identical: Sequence[tuple[str, str]]) -> None:
    """A warning about scans with the same predictions, which are probably one scan."""
    if identical:
        pairs = first_few([f"{first} = {second}" for first, second in identical])
        line = f"{len(identical)} scans have the prediction of another one ({pairs})"
        warn(f"{line}; if they are one scan, remove one, because they count as two")


def warn_calibrated(folders: Iterable[Path]) -> None:
    """A warning about folders of predictions that would be calibrated twice."""
    from segcal.evaluation import calibration_of

    for folder in folders:
        if known := calibration_of(folder):
            warn(f"{folder}: is calibrated already ({known}); --out is calibrated twice")


def warn_absent(structures: Sequence[str]) -> None:
    """A warning about structures that occur in no label map."""
    if structures:
        warn(f"no label map contains {', '.join(structures)}; are these the right labels?")


def warn_seen(cases: Sequence[str], fitting: bool = False) -> None:
    """A warning about predictions of scans that a network was trained (or validated) on."""
    if cases:
        used = "trained" if fitting else "trained, validated or calibrated"
        effect = "a fit on them is too optimistic" if fitting else "results on them are optimistic"
        scans = f"{len(cases)} of these scans ({first_few(cases)})"
        warn(f"a network was {used} on {scans}; {effect}")


def number(value: float | None) -> str:
    """Four digits; a dash for None and NaN."""
    return "–" if value is None or value != value else f"{value:.4g}"


def print_table(table: Any) -> None:
    """Print a rich table; into a file or a pipe it is not cut."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=1000)).print(table)
