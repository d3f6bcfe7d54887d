"""`segcal audit`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def audit(
    labels: opt.Labels,
    out: Annotated[Path, typer.Option(help="Folder of the study; the page is report/index.html.")],
    probs: Annotated[
        list[str] | None,
        typer.Option(help="Folder of probabilities; for several networks NAME=FOLDER each."),
    ] = None,
    logits: Annotated[
        list[str] | None, typer.Option(help="Folder of logits, instead of probabilities.")
    ] = None,
    images: opt.Images = None,
    name: Annotated[str | None, typer.Option(help="Name of the network.")] = None,
    dataset: Annotated[str, typer.Option(help="Name of the data.")] = "audit",
    classes: opt.Classes = None,
    region: Annotated[
        str, typer.Option(help="Region that the tables show; all regions are measured.")
    ] = "predicted",
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Rule; exit with 1 if it holds: 'ece>0.05', 'predicted:cece>=0.1'."),
    ] = None,
    patient: opt.Patient = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    heads: opt.Heads = None,
    jobs: opt.Jobs = 1,
    launcher: opt.Launcher = "local",
    address: opt.Address = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Measure whether the probabilities of any network can be trusted, and write a report."""
    from segcal.evaluation import audit_predictions, check_rules, make_networks, parse_rule

    rules = [parse_rule(text) for text in fail_if or ()]
    if bool(probs) == bool(logits):
        raise ValueError("give either --probs FOLDER or --logits FOLDER")
    networks = make_networks(probs or logits or (), name)
    with show_progress() as step:
        audited = audit_predictions(
            networks, labels, out,
            images=images, dataset=dataset, region=region, logits=bool(logits), axes=axes,
            classes=opt.split_names(classes), ignore_label=ignore_label,
            heads=opt.given_heads(heads), patient=patient,
            jobs=opt.workers(jobs, launcher, address), overwrite=overwrite, progress=step,
        )  # fmt: skip
    opt.warn_unused(audited.unused)
    opt.warn_patients(next(iter(audited.networks.values())).info.case_names, patient)
    opt.warn_identical(audited.identical)
    if audited.reused:
        line = f"{audited.reused} cases were measured before the last audit was stopped"
        opt.warn(f"{line}; they are reused")
    if not audited.has_spacing:
        opt.warn("no file states a voxel size: distances are in voxels")
    opt.warn_seen(audited.seen)
    opt.warn_absent(audited.absent())
    # Imported here, so that matplotlib takes no memory while cases are measured.
    from segcal.report import (
        Context,
        network_verdicts,
        stated_confidence,
        volume_findings,
        write_report,
    )
    from segcal.study import read_study

    study = read_study(out)
    page = write_report(study)
    context = Context(study)
    for line in (
        *network_verdicts(context), *volume_findings(context), *audited.lines(),
        *stated_confidence(context),
    ):  # fmt: skip
        typer.echo(line)
    typer.echo(f"report: {page}")
    violations = check_rules(audited.networks, rules)
    for line in violations:
        opt.warn(f"FAILED {line}")
    if violations:
        raise typer.Exit(1)
