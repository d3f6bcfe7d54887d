"""`segcal calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress

if TYPE_CHECKING:
    from segcal.evaluation import Fitted
    from segcal.posthoc import BaseCalibrator


def calibrate(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run or a folder of folds: fits on their validation cases."),
    ] = None,
    labels: opt.OptionalLabels = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File of the calibrator. Default: RUN/calibrator_METHOD.json."),
    ] = None,
    logits: opt.Logits = None,
    probs: opt.Probs = None,
    method: opt.Method = "temperature",
    region: opt.Region = "all",
    balance: Annotated[
        Literal["none", "class"], typer.Option(help="class: every class has the same weight.")
    ] = "none",
    folds: opt.Folds = 5,
    patient: opt.Patient = None,
    max_voxels: Annotated[
        int, typer.Option(help="Approximate number of voxels to fit on.")
    ] = 1_000_000,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the method, such as odir=0.01; repeat for several."),
    ] = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    heads: opt.Heads = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="One calibrator for all sigmoid outputs.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="The prepared set of RUN, if it has moved.")
    ] = None,
    device: opt.Device = "auto",
    seed: opt.Seed = 0,
    jobs: opt.Jobs = 1,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Fit a calibrator on held-out cases, and report by cross-validation whether it helps.

    The cases are the validation cases of RUN, or files (--probs or --logits, and --labels).
    """
    from segcal.evaluation import (
        calibration_of,
        calibrator_path,
        check_method,
        fit_pairs,
        fit_run,
        seen_cases,
    )
    from segcal.predictions import check_not_existing, find_pairs

    options = _parse_options(override)
    check_method("--method", method, **options)
    fit: dict[str, Any] = {
        "region": region, "balance": balance, "folds": folds,
        "max_voxels": max_voxels, "seed": seed, "options": options, "shared": shared,
        **({"patient": patient} if patient else {}),
    }  # fmt: skip
    workers = opt.workers(jobs, launcher, address)
    if run is not None:
        if (logits or probs or labels) is not None:
            raise ValueError("give either RUN, or --probs or --logits with --labels")
        if launcher == "ray":
            raise ValueError("--launcher ray needs files (--probs or --logits), not a RUN")
        out = out or calibrator_path(run, method)
        check_not_existing([out], overwrite)
        with show_progress() as progress:
            fitted = fit_run(
                run, method, data=data, device=device, jobs=jobs, progress=progress,
                say=opt.warn, **fit,
            )  # fmt: skip
    else:
        if labels is None or out is None:
            raise ValueError("give a RUN, or --probs or --logits with --labels and --out")
        folder, from_probs = opt.one_folder(logits, probs)
        check_not_existing([out], overwrite)
        pairs = find_pairs(
            folder, labels, axes=axes, ignore_label=ignore_label, heads=opt.given_heads(heads)
        )
        opt.warn_unused(pairs.unused)
        opt.warn_patients(pairs.names, patient)
        opt.warn_identical(pairs.identical())
        opt.warn_seen(seen_cases(pairs, ["train"]), fitting=True)
        if known := calibration_of(folder):
            opt.warn(f"{folder}: is calibrated already ({known}); --out is for such predictions")
        with show_progress() as progress:
            fitted = fit_pairs(
                pairs, method, from_probs=from_probs, jobs=workers, progress=progress, **fit
            )
    fitted.calibrator.save(out)
    print_fit(fitted, out)


def _parse_options(texts: list[str] | None) -> dict[str, Any]:
    """key=number, or key=number,number."""
    out: dict[str, Any] = {}
    for text in texts or ():
        key, _, value = text.partition("=")
        try:
            numbers = [int(v) if v.strip().isdigit() else float(v) for v in value.split(",")]
        except ValueError as error:
            raise ValueError(f"--set {text}: expected key=number, or key=number,number") from error
        out[key] = numbers if len(numbers) > 1 else numbers[0]
    return out


def print_temperature(calibrator: BaseCalibrator) -> None:
    """Print the temperature, or those of all sigmoid outputs; nothing of another calibrator."""
    params = calibrator.params()
    if calibrator.method == "temperature":
        for name, each in (params if "temperature" not in params else {"": params}).items():
            typer.echo(f"{name}{name and ': '}temperature {each['temperature']:.4f}")


def print_fit(fitted: Fitted, out: Path) -> None:
    """Print what was fitted, and the verdict of the cross-validation."""
    calibrator, report, verdict = fitted.calibrator, fitted.calibrator.report, fitted.verdict
    assert report is not None
    typer.echo(
        f"{out}: {calibrator.method} fitted on {report.cases} cases, {report.voxels:,} voxels "
        f"({report.used:,} sampled), NLL {report.nll_before:.4f} → {report.nll_after:.4f}"
    )
    print_temperature(calibrator)
    opt.warn_absent(fitted.absent)
    if fitted.disagreement:
        opt.warn(fitted.disagreement)
    for line in (*report.warnings(), *(verdict.warnings if verdict is not None else ())):
        typer.echo(f"warning: {line}", err=True)
    for line in fitted.choice.lines() if fitted.choice is not None else ():
        typer.echo(line)
    if verdict is None:
        typer.echo(fitted.conclusion())
        return
    typer.echo(
        f"{'region':<19}{'metric':<7}{'before':>9}{'after':>9}   95 % interval of the change"
    )
    for c in verdict.changes:
        if c.cases:
            numbers = f"{c.before:>9.4f}{c.after:>9.4f}   [{c.low:+.4f}, {c.high:+.4f}]"
            typer.echo(f"{c.region:<19}{c.metric:<7}{numbers}  {c.direction}")
        else:
            typer.echo(f"{c.region:<19}{c.metric:<7}  has no voxels")
    effect = "does not change labels" if calibrator.keeps_argmax else "may change labels"
    typer.echo(
        f"{calibrator.method} {effect}: {verdict.changed_labels:,} of {verdict.voxels:,} voxels "
        "changed their label"
    )
    typer.echo(fitted.conclusion())
