"""The tasks of a plan: datasets × methods × points of grids × seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from segcal.benchmark.plan import Plan, Settings, slug
from segcal.benchmark.tasks import Task
from segcal.core.errors import LeakError, PathError
from segcal.data import PreparedDataset, check_fits, open_dataset


def open_datasets(plan: Plan) -> dict[str, PreparedDataset]:
    """The prepared sets of a plan; one without a folder, or needed probabilities, raises."""
    for name, dataset in plan.datasets.items():
        if not dataset.path:
            remedy = f"pass --data {name}=DIR, or set datasets.{name}.path in the plan"
            raise ValueError(f"dataset `{name}` has no folder; {remedy}")
    datasets = {name: open_dataset(dataset.path) for name, dataset in plan.datasets.items()}
    for metric in (name for name in plan.metrics if name.startswith("truth_")):
        for name, opened in datasets.items():
            if next(iter(opened)).truth() is None:
                problem = f"dataset `{name}` lacks the true probabilities that `{metric}` needs"
                remedy = "remove the metric from `metrics`"
                raise PathError(plan.datasets[name].path, problem, remedy)
    return datasets


def open_external(
    plan: Plan, datasets: Mapping[str, PreparedDataset]
) -> dict[str, dict[str, PreparedDataset]]:
    """The external sets of each dataset; one that does not fit the dataset raises."""
    found = {
        name: {key: open_dataset(path) for key, path in dataset.external.items()}
        for name, dataset in plan.datasets.items()
    }
    for name, others in found.items():
        for key, other in others.items():
            check_fits(other, datasets[name].info, datasets[name].root)
            if other.fingerprint == datasets[name].fingerprint:
                problem = f"`datasets.{name}.external.{key}` is the dataset itself"
                raise PathError(other.root, problem, "give another prepared set")
    return found


def check_parts(tasks: Iterable[Task], datasets: Mapping[str, PreparedDataset]) -> None:
    """Refuse, before anything is trained, a set whose training, validation and test cases mix."""
    for name, fold in dict.fromkeys((task.dataset, task.config.data.fold) for task in tasks):
        try:
            datasets[name].check_parts(fold)
        except LeakError:
            raise
        except PathError:
            pass  # Something cannot be read: its runs fail with the reason, the others continue.


def plan_tasks(plan: Plan) -> list[Task]:
    """The tasks that can start at once: candidates of grids, and all runs of other methods.

    Seeds come one after another, so that an interrupted study compares all methods. Each loss is
    built once, so that an invalid option is found before anything is trained.
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
                        build_loss(task.config.loss)
                    except (ValueError, TypeError) as error:
                        raise ValueError(f"method `{name}`: {error}") from error
                    tasks.append(task)
    return tasks


def possible_tasks(plan: Plan) -> Iterator[Task]:
    """Every run that the plan may lead to, whichever point of a grid is chosen."""
    for name, method in plan.methods.items():
        for dataset in plan.datasets:
            for options in method.candidates():
                for seed in plan.seeds:
                    yield make_task(plan, dataset, name, options, seed)


def make_task(
    plan: Plan, dataset: str, method: str, options: Settings, seed: int, *, searched: bool = False
) -> Task:
    """The task of one run. The folder of a run with a grid names its options.

    `searched`: a candidate, which is evaluated on the validation split only. Its best weights are
    kept because it may be chosen.
    """
    grid = plan.methods[method].grid
    place = f"{method}@{slug({key: options[key] for key in grid})}" if grid else method
    return Task(
        run=f"{dataset}/{place if searched else method}/seed{seed}",
        dataset=dataset,
        method=place if searched else method,
        seed=seed,
        folder=f"runs/{dataset}/{place}/seed{seed}",
        split="val" if searched else "test",
        config=plan.config(dataset, method, options, seed),
        evaluation=plan.evaluation,
        region=plan.region,
        external={} if searched else plan.datasets[dataset].external,
        posthoc=() if searched else plan.posthoc,
        keep="best" if searched and plan.keep == "none" else plan.keep,
    )


def counts(plan: Plan) -> Mapping[str, int]:
    """The number of candidates to search, and of runs to report."""
    per_seed = len(plan.datasets)
    grids = [method for method in plan.methods.values() if method.grid]
    search = per_seed * sum(len(list(method.candidates())) for method in grids)
    return {"candidates": search, "runs": per_seed * len(plan.methods) * len(plan.seeds)}


def list_runs(plan: Plan) -> Iterator[str]:
    """The runs and datasets of a plan, one line each, and a summary; nothing is trained."""
    for task in plan_tasks(plan):
        for one in task.and_calibrated():
            yield one.run
    for name, dataset in plan.datasets.items():
        yield f"dataset {name}: {dataset.path or f'no folder yet; pass --data {name}=DIR'}"
        for other, path in dataset.external.items():
            yield f"dataset {name}, also evaluated on {other}: {path}"
    if all(dataset.path for dataset in plan.datasets.values()):
        open_external(plan, open_datasets(plan))
    total = counts(plan)
    search = f", after {total['candidates']} candidates" if total["candidates"] else ""
    calibrated = f", each also calibrated by {', '.join(plan.posthoc)}" if plan.posthoc else ""
    yield f"{plan.title}: {total['runs']} runs{search}{calibrated}; nothing was trained"
