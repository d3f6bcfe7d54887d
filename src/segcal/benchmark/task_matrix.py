"""From a plan to its tasks: datasets × methods × points of grids × seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segcal.benchmark.plan import Plan, slug
from segcal.benchmark.tasks import Task
from segcal.core.errors import LeakError, PathError
from segcal.data import PreparedDataset, open_dataset


def open_datasets(plan: Plan) -> dict[str, PreparedDataset]:
    """The prepared sets of a plan; one without a folder, or without what a metric needs, is an
    error that says what to give."""
    for name, where in plan.datasets.items():
        if not where.path:
            raise ValueError(
                f"Expected dataset `{name}` of the plan to have a folder, but got none: "
                f"say --data {name}=DIR, or set datasets.{name}.path."
            )
    datasets = {name: open_dataset(where.path) for name, where in plan.datasets.items()}
    for metric in (name for name in plan.metrics if name.startswith("truth_")):
        for name, dataset in datasets.items():
            if next(iter(dataset)).truth() is None:
                raise ValueError(
                    f"Expected dataset `{name}` to have known probabilities, which `{metric}` of "
                    f"`metrics` needs, but {plan.datasets[name].path} has labels alone."
                )
    return datasets


def check_parts(tasks: Iterable[Task], datasets: Mapping[str, PreparedDataset]) -> None:
    """Refuse, before anything is trained, a set whose training, validation and test cases mix."""
    for name, fold in dict.fromkeys((task.dataset, task.settings.data.fold) for task in tasks):
        try:
            datasets[name].check_parts(fold)
        except LeakError:
            raise
        except PathError:
            pass  # Something cannot be read: its runs fail and say why, the others go on.


def plan_tasks(plan: Plan) -> list[Task]:
    """The tasks that can be done at once: candidates of grids, and all runs of other methods.

    Seeds come one after another, so that a study which is cut off compares all methods. Losses
    are built here once, so that a wrong option is known before anything is trained.
    """
    from segcal.training import build_loss

    tasks = []
    for seed in plan.seeds:
        for name, method in plan.methods.items():
            if method.grid and seed != plan.seeds[0]:
                continue
            for dataset in plan.datasets:
                for options in method.candidates():
                    task = make_task(plan, dataset, name, options, seed, searched=bool(method.grid))
                    try:
                        build_loss(task.settings.loss)
                    except (ValueError, TypeError) as error:
                        raise ValueError(f"method `{name}`: {error}") from error
                    tasks.append(task)
    return tasks


def possible_tasks(plan: Plan) -> Iterator[Task]:
    """Every run that the plan may come to, whatever point of a grid is chosen."""
    for name, method in plan.methods.items():
        for dataset in plan.datasets:
            for options in method.candidates():
                for seed in plan.seeds:
                    yield make_task(plan, dataset, name, options, seed)


def make_task(
    plan: Plan,
    dataset: str,
    method: str,
    options: dict[str, Any],
    seed: int,
    *,
    searched: bool = False,
) -> Task:
    """The task of one run. Runs of methods with a grid live in folders that name the options.

    `searched`: a candidate, which is judged by the validation split and never sees the test split.
    It may be chosen, so its best weights are kept until then.
    """
    grid = plan.methods[method].grid
    place = f"{method}@{slug({key: options[key] for key in grid})}" if grid else method
    return Task(
        run=f"{dataset}/{place if searched else method}/seed{seed}",
        dataset=dataset,
        method=place if searched else method,
        seed=seed,
        folder=f"runs/{dataset}/{place}/seed{seed}",
        splits=("val",) if searched else ("test",),
        config=plan.config(dataset, method, options, seed).model_dump(mode="json"),
        evaluation=plan.evaluation.model_dump(mode="json"),
        posthoc=() if searched else plan.posthoc,
        keep="best" if searched and plan.keep == "none" else plan.keep,
    )


def counts(plan: Plan) -> Mapping[str, int]:
    """How much a plan asks for: candidates to search, and runs to report."""
    per_seed = len(plan.datasets)
    search = sum(
        per_seed * len(list(method.candidates())) for method in plan.methods.values() if method.grid
    )
    return {"candidates": search, "runs": per_seed * len(plan.methods) * len(plan.seeds)}
