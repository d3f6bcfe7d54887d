"""`segcal benchmark`: a thin command over `segcal.benchmark`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def benchmark(
    plan: Annotated[Path, typer.Argument(help="YAML: datasets, methods, seeds; see examples/.")],
    out: Annotated[Path, typer.Option(help="Folder of the study.")],
    data: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR: where a dataset of the plan is; repeat.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at once; one for each GPU by default.")
    ] = None,
    launcher: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.")] = None,
    retries: Annotated[
        int, typer.Option(help="How often a run is tried again whose process has died.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the study in --out, if there is one.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(help="Weights that stay once a run is evaluated: all, best or none."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the plan, such as train.epochs=1; repeat."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan, list its runs, train nothing.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write the report at the end.")] = True,
) -> None:
    """Run a study: datasets × methods × seeds, trained, evaluated, ranked and reported."""
    from segcal.benchmark import load_plan, run_benchmark

    changes = [*(override or []), *([] if keep is None else [f"keep={keep}"])]
    checked = load_plan(plan, overrides=changes, data=_pairs(data or []))
    if dry_run:
        _list(checked)
        return
    try:
        study = run_benchmark(
            checked, out, jobs=jobs, launcher=launcher, address=address, retries=retries,
            resume=resume,
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"segcal: {out}: interrupted; continue with --resume", err=True)
        raise typer.Exit(130) from None
    finish(study, report)


def finish(study: Any, report: bool) -> None:
    """The ranking in the terminal, what failed, and the report."""
    if study.done():
        _show_ranks(study)
        if report:
            from segcal.report import write_report

            typer.echo(f"report: {write_report(study.folder)}")
    for run, error in study.failed.items():
        typer.echo(f"segcal: {run} failed: {error}", err=True)
    if study.failed:
        raise typer.Exit(1)


def _show_ranks(study: Any) -> None:
    """Means of each dataset (as the report's tables have them), those ranked first."""
    from rich.console import Console
    from rich.table import Table

    from segcal.stats import method_means

    content, metrics, ranks = study.content(), study.metrics, study.ranks
    titles = {method["name"]: method["title"] for method in content["methods"]}
    rows = method_means(study.table(), metrics=metrics, region=content["region"])
    means: dict[Any, float] = rows.set_index(["dataset", "method", "metric"])["mean"].to_dict()
    places = {} if ranks is None else {row.method: row for row in ranks.itertuples()}
    shown = [d["name"] for d in content["datasets"] if any(key[0] == d["name"] for key in means)]
    where = f"calibration in region {content['region']}, lower ranks are better"
    grid = Table("method", title=f"{content['title']}: {where}", title_justify="left")
    for dataset in shown:
        for metric in metrics:
            name = metric.replace("_", " ")
            grid.add_column(name if len(shown) == 1 else f"{dataset} {name}", justify="right")
    for name in ("sum rank", "mean case rank"):
        grid.add_column(name, justify="right")
    there = {method for _, method, _ in means}
    for method in [*places, *(name for name in titles if name in there - set(places))]:
        numbers = [_number(means.get((d, method, m))) for d in shown for m in metrics]
        place = places.get(method)
        rank = ("–", "–") if place is None else (
            f"{place.sum_rank:g}", f"{place.mean_case_rank:.3g}"
        )  # fmt: skip
        grid.add_row(titles[method], *numbers, *rank)
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(grid)
    if ranks is None:
        typer.echo(f"not ranked: {study.not_ranked}")
        return
    undefined = int(ranks["undefined"].sum())
    if undefined:
        words = "count as the worst in ranks, where a structure was missed; means leave them out"
        typer.echo(f"{undefined} values are undefined: they {words}")
    used = str(ranks["metrics"].iloc[0]).split()
    for metric in [name for name in metrics if name not in used]:
        typer.echo(f"not ranked by {metric}: some dataset has no value of it")


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4g}"


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ValueError(f"Expected argument `--data` to be NAME=DIR, but got {text!r}.")
        pairs[name] = path
    return pairs


def _list(plan: Any) -> None:
    from segcal.benchmark.task_matrix import counts, open_datasets, plan_tasks

    tasks = plan_tasks(plan)
    for task in tasks:
        for one in task.and_calibrated():
            typer.echo(one.run)
    for name, where in plan.datasets.items():
        typer.echo(f"dataset {name}: {where.path or f'no folder yet; say --data {name}=DIR'}")
    if all(where.path for where in plan.datasets.values()):
        open_datasets(plan)
    total = counts(plan)
    search = f", after {total['candidates']} candidates" if total["candidates"] else ""
    after = f", each calibrated by {', '.join(plan.posthoc)} too" if plan.posthoc else ""
    typer.echo(f"{plan.title}: {total['runs']} runs{search}{after}; nothing was trained")
