"""Recipes: settings for training as YAML files, of which one can adapt to the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segcal.config import TrainConfig, check_config, merge, read_yaml
from segcal.data import PreparedDataset
from segcal.registry import Registry
from segcal.training.adapt import adapt


@dataclass(frozen=True)
class Recipe:
    """Settings of `segcal train`; `adapt` chooses those that depend on the data."""

    title: str
    train: dict[str, Any] = field(default_factory=dict)
    adapt: bool = False


RECIPES: Registry[Recipe] = Registry(
    "recipe", "segcal.recipes", lambda thing: isinstance(thing, Recipe), "a Recipe"
)
for _name in ("strong", "paper"):
    RECIPES.register(_name, Recipe(**read_yaml(Path(__file__).with_name(f"{_name}.yaml"))))


def apply_recipe(
    config: TrainConfig,
    dataset: PreparedDataset,
    *,
    processes: int = 1,
    existing: TrainConfig | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> TrainConfig:
    """The config with every setting that was not given taken from its recipe.

    A recipe that adapts to the data is applied once: a run that is resumed has `existing` settings,
    which replace those of the recipe. `say` gets the choices and their reasons.
    """
    try:
        recipe = RECIPES.get(config.recipe)
    except ValueError as error:
        raise ValueError(f"`recipe`: {error}") from error
    given = config.model_dump(exclude_unset=True)
    base = recipe.train
    if recipe.adapt and existing is not None:
        base = existing.model_dump()
    elif recipe.adapt:
        settings = check_config(merge(base, given))
        chosen, reasons = adapt(settings, dataset, given, processes)
        base = merge(base, chosen)
        for reason in reasons:
            say(f"recipe {config.recipe}: {reason}")
    return check_config(merge(base, given))
