"""`segcal evaluate`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress

# Of several readers; all of them are in cases.csv.
_READER_METRICS = ("reader_ece", "reader_nll", "reader_dsc", "human_dsc", "reader_crps_ml")


def evaluate(
    run: opt.Runs,
    split: Annotated[
        str | None,
        typer.Option(help="train, val or test. Default: test, or all cases of an external set."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="An external prepared set; or the set of the training, if it has moved."),
    ] = None,
    calibrator: opt.Calibrator = None,
    raw: opt.Raw = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results of several runs. Default: that of the run."),
    ] = None,
    grid: Annotated[
        Literal["prepared", "original"],
        typer.Option(help="Measure on the grid of the prepared set or of the original scans."),
    ] = "prepared",
    checkpoint: opt.Checkpoint = "best",
    region: Annotated[
        list[str] | None,
        typer.Option(
            help="Region to measure in, such as predicted or all; repeat. Default: all six."
        ),
    ] = None,
    units: Annotated[str, typer.Option(help="Unit of surface distances: mm or voxel.")] = "mm",
    empty: Annotated[
        str, typer.Option(help="Values for empty masks: nan, diagonal or paper.")
    ] = "nan",
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.")] = 15,
    flips: opt.Flips = "",
    average: opt.Average = "probs",
    device: opt.Device = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Threads that measure, or tasks on Ray; the result does not depend on it.", min=1
        ),
    ] = None,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Evaluate a run, or the average of several, on a split of its data, or on an external set.

    Writes cases.csv, bins.npz, slices.npz and evaluation.json into RUN, or RUN/external/NAME.
    """
    from segcal.config import EvaluationConfig, check_section
    from segcal.core.checks import check_choice
    from segcal.evaluation import SPLITS, evaluate_run

    if split is not None:
        check_choice("--split", split, SPLITS)
    settings: dict[str, Any] = {
        "checkpoint": checkpoint, "units": units, "empty": empty, "num_bins": bins,
        "flips": list(flips), "average": average, "grid": grid,
        **({"regions": region} if region else {}),
    }  # fmt: skip
    config = check_section(EvaluationConfig, settings, "segcal evaluate")
    with show_progress() as step:
        evaluation = evaluate_run(
            run, split=split, config=config, data=data, calibrator=calibrator, raw=raw, out=out,
            device=device, overwrite=overwrite, progress=step, say=opt.warn,
            jobs=jobs if launcher == "local" else opt.workers(jobs or 1, launcher, address, device),
        )  # fmt: skip
    if evaluation.reused:
        typer.echo(f"{evaluation.path('evaluation.json')}: is up to date and was reused")
    _show(evaluation)


def _show(evaluation: Any) -> None:
    """Print means of the main metrics: segmentation per structure, calibration per region."""
    from rich.table import Table

    from segcal.metrics import POOLED

    info, table = evaluation.info, evaluation.table()
    table = table[table["case"] != POOLED]

    def mean(metric: str, label: str, region: str) -> str:
        keys = (table["metric"] == metric) & (table["label"] == label)
        return opt.number(table[keys & (table["region"] == region)]["value"].mean())

    distance = f"hd95_{info.options['units']}"
    cases = f"{len(info.case_names)} {'external ' if info.external else ''}cases"
    state = f"calibrated by {info.calibrator['method']}" if info.calibrator else "not calibrated"
    title = f"{info.dataset} {info.split}, {cases}, {info.method}, {state}, {info.grid} grid"
    typer.echo(title)
    grid = Table()
    for column in ("structure", "DSC", distance.replace("_", " ")):
        grid.add_column(column, justify="left" if column == "structure" else "right")
    for name in info.structures:
        grid.add_row(name, mean("dsc", name, "all"), mean(distance, name, "all"))
    opt.print_table(grid)
    grid = Table("region", "ECE", "CECE", "signed gap", "Brier", "NLL")
    for region in info.regions:
        metrics = ("ece", "cece", "signed_gap", "brier", "nll")
        means = evaluation.means(region)
        grid.add_row(region, *(opt.number(means.get(metric)) for metric in metrics))
    opt.print_table(grid)
    whole = table[table["region"] == "all"].groupby("metric", observed=True)["value"].mean()
    if any(metric in whole for metric in _READER_METRICS):
        grid = Table("several readers", "mean")
        for metric in _READER_METRICS:
            grid.add_row(metric, opt.number(whole.get(metric)))
        opt.print_table(grid)
    undefined = f"{sum(info.undefined.values())} undefined values are left out"
    if any(info.undefined.values()):
        undefined += " (such as distances of a structure without a mask or label)"
    typer.echo(f"{evaluation.path('cases.csv')}: means over cases; {undefined}")
