"""`segcal rank`: rank the methods of tables of cases."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli._frames import print_frame


def rank(
    cases: Annotated[
        list[Path],
        typer.Argument(help="Tables with one value per row (cases.csv); several are combined."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the tables; by default the folder of the only input."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Rank only these methods; repeat for several.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Rank by these metrics: registered names or package.module:Object; repeat for "
            "several. [default: dsc, hd95, ece, cece]"
        ),
    ] = None,
    region: Annotated[str, typer.Option(help="Where calibration was measured.")] = "all",
    missing: Annotated[
        str, typer.Option(help="Undefined values: raise, worst or drop_case.")
    ] = "raise",
    patient: Annotated[
        str | None,
        typer.Option(
            help="Rank patients instead of cases: a regular expression that finds the patient in "
            "the name of a case."
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Bootstrap resamples of the cases.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace tables that were computed from other input."),
    ] = False,
) -> None:
    """Rank methods: sum-rank, mean-case-rank, intervals, and paired tests against the best."""
    from segcal.stats import REQUIRED_COLUMNS, rank_methods
    from segcal.study import check_ranking_folder, read_cases_tables, write_ranking

    if out is None and len(cases) > 1:
        raise ValueError("--out is required when several tables are given")
    folder = cases[0].parent if out is None else out
    table = read_cases_tables(cases, required=REQUIRED_COLUMNS)
    check_ranking_folder(folder, cases, overwrite)
    try:
        ranking = rank_methods(
            table, methods=method or None, metrics=metric or None, region=region,
            missing=missing,  # type: ignore[arg-type]  # checked there
            patient=patient, resamples=resamples, seed=seed,
        )  # fmt: skip
    except ValueError as error:
        if str(error).startswith("Expected argument"):
            raise
        raise ValueError(f"{', '.join(map(str, cases))}: {error}") from error
    scores = ranking.scores
    subjects = "cases" if patient is None else "patients"
    options = {"patient": patient, "resamples": resamples, "seed": seed}
    write_ranking(folder, ranking, cases, options)
    where = f"calibration in region {region}, missing: {missing}"
    if patient is not None:
        where += f", {sum(map(len, scores.cases.values()))} patients instead of cases"
    for name, each in ranking.tables.items():
        shown = ranking.ranks_by_dataset() if name == "sum_rank" else each
        hidden = [c for c in ("metrics", "region", "missing") if c in shown.columns]
        print_frame(f"{name.replace('_', ' ')} ({where})", shown.drop(columns=hidden))
    typer.echo(
        f"{scores.total_undefined} values missing, undefined or infinite (policy: {missing})"
    )
    if len(scores.methods) > 1:
        typer.echo(
            f"Tests are against {ranking.best}, chosen as the best on the same {subjects}, which "
            "favors it."
        )
