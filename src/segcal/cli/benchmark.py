"""`segcal benchmark`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.cli import _options as opt


def benchmark(
    plan: Annotated[Path, typer.Argument(help="YAML: datasets, methods, seeds; see examples/.")],
    out: Annotated[Path, typer.Option(help="Folder of the study.")],
    data: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR: folder of a dataset of the plan; repeat.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time; by default one per GPU.")
    ] = None,
    launcher: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster.")] = None,
    retries: Annotated[
        int, typer.Option(help="How often a run is retried after its process died.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the study in --out, if there is one.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option(help="Weights to keep once a run is evaluated: all, best or none.")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the plan, such as train.epochs=1; repeat."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan and list its runs only.")
    ] = False,
    report: opt.Report = True,
) -> None:
    """Run a study: datasets × methods × seeds, trained, evaluated, ranked and reported."""
    from segcal.benchmark import list_runs, load_plan, run_benchmark

    changes = [*(override or []), *([] if keep is None else [f"keep={keep}"])]
    checked = load_plan(plan, overrides=changes, data=dict(map(_name_and_folder, data or [])))
    if dry_run:
        for line in list_runs(checked):
            typer.echo(line)
        return
    try:
        study = run_benchmark(
            checked, out, jobs=jobs, launcher=launcher, address=address, retries=retries,
            resume=resume,
        )  # fmt: skip
    except KeyboardInterrupt:
        opt.warn(f"{out}: stopped; continue with --resume")
        raise typer.Exit(130) from None
    finish(study, report)


def finish(study: Any, report: bool) -> None:
    """Print the ranking and the failed runs, and write the report."""
    if study.finished is not None:
        _show_ranks(study)
        if report:
            from segcal.report import write_report

            typer.echo(f"report: {write_report(study.finished)}")
    for run, error in study.failed.items():
        opt.warn(f"{run} failed: {error}")
    if study.failed:
        raise typer.Exit(1)


def _show_ranks(study: Any) -> None:
    """Print the means of each dataset as in the report, ranked methods first."""
    from rich.table import Table

    from segcal.stats import method_means

    finished, metrics, ranks = study.finished, study.metrics, study.ranks
    rows = method_means(finished.table, metrics=metrics, region=finished.region)
    means: dict[Any, float] = rows.set_index(["dataset", "method", "metric"])["mean"].to_dict()
    places = {} if ranks is None else {row.method: row for row in ranks.itertuples()}
    shown = [name for name in finished.datasets if any(key[0] == name for key in means)]
    grid_name = finished.info.measured_grid
    region = "over all voxels" if finished.region == "all" else f"in region {finished.region}"
    note = f"means over cases, {grid_name} grid, calibration {region}"
    grid = Table("method", title=f"{finished.info.title}: {note}", title_justify="left")
    for dataset in shown:
        for metric in metrics:
            name = metric.replace("_", " ")
            grid.add_column(name if len(shown) == 1 else f"{dataset} {name}", justify="right")
    for name in ("sum rank", "mean case rank"):
        grid.add_column(name, justify="right")
    measured = {method for _, method, _ in means}
    for method in [*places, *(m for m in finished.methods if m in measured - set(places))]:
        numbers = [opt.number(means.get((d, method, m))) for d in shown for m in metrics]
        rank = ["–", "–"]
        if method in places:
            rank = [f"{places[method].sum_rank:g}", f"{places[method].mean_case_rank:.3g}"]
        grid.add_row(finished.methods[method].title, *numbers, *rank)
    opt.print_table(grid)
    if ranks is None:
        typer.echo(f"not ranked: {study.not_ranked}")
        return
    typer.echo("Ranks: lower is better. Sum rank adds up the ranks of the means;")
    typer.echo("mean case rank is the mean of the ranks in single cases.")
    if lines := _undefined(finished.table, metrics, finished.region):
        typer.echo("\n".join(lines))
        typer.echo("Means leave these out; ranks count a missed structure as the worst value.")
    used = str(ranks["metrics"].iloc[0]).split()
    for metric in [name for name in metrics if name not in used]:
        typer.echo(f"not ranked by {metric}: a dataset has no value of it")


def _undefined(table: Any, metrics: list[str], region: str) -> list[str]:
    """One line per dataset and metric with undefined values: of what, how many, and why."""
    from segcal.metrics import POOLED, find_metric

    lines = []
    rows = table[table["metric"].isin(metrics) & (table["case"] != POOLED)]
    for (dataset, metric), part in rows.groupby(["dataset", "metric"], observed=True, sort=False):
        found = find_metric(metric)
        part = part[part["region"] == ("all" if found.whole_image else region)]
        absent = part["value"].isna()
        if not absent.any():
            continue
        part = part[part["label"].isin(part["label"][absent])]
        why, of = f"no voxel in region {region}", ""
        if found.scope == "structure":
            why = "it is not in the scan or was not found"
            of = f" of {', '.join(dict.fromkeys(part['label']))}"
        lines.append(
            f"{dataset}, {metric.replace('_', ' ')}{of}: {absent.sum()} of {len(part)} values are "
            f"undefined ({why})."
        )
    return lines


def _name_and_folder(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ValueError(f"--data {text}: expected NAME=DIR")
    return name, folder
