"""Recipes: what they choose from the data, what the user's settings override, resuming."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from helpers.runs import phantom, same, weights
from segcal.cli import app
from segcal.config import check_config
from segcal.data import open_dataset
from segcal.study import read_run_config
from segcal.study.run_folder import read_log
from segcal.training import RECIPES, adapt, complete_config, train
from segcal.training.adapt import choose_levels, choose_patch
from segcal.training.recipes import apply_recipe

SMALL: dict[str, Any] = {"model": {"options": {"filters": [4, 8, 8]}}, "precision": "32"}


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=14, size=32)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", cases=10, size=32, slices=10)


def test_paper_is_the_defaults_of_every_setting(slices: Path) -> None:
    assert list(RECIPES) == ["strong", "paper"]
    config = check_config({"data": {"path": str(slices)}})
    assert apply_recipe(config, open_dataset(slices)) == config


def test_strong_chooses_from_the_data(slices: Path, volumes: Path) -> None:
    said: list[str] = []
    config, _ = complete_config(
        check_config({"recipe": "strong", "data": {"path": str(slices)}}), say=said.append
    )
    assert (config.data.mode, config.data.patch_size, config.batch_size) == ("2d", None, 2)
    assert (config.model.name, len(config.model.options["filters"])) == ("norm_unet", 4)
    assert (config.ema, config.select, config.recover) == (0.999, "both", True)
    assert (config.optimizer.decay, config.augment[0].name) == ("cosine", "batched")
    assert "32 × 32" in " ".join(said)
    config, _ = complete_config(check_config({"recipe": "strong", "data": {"path": str(volumes)}}))
    assert (config.data.mode, config.data.patch_size) == ("3d", (16, 32, 32))
    assert config.data.foreground > 0.33
    assert len(config.augment[0].options["spacing"]) == 3


@pytest.mark.parametrize(
    ("epochs", "given", "warmup"),
    [(None, None, 2), (100, None, 2), (25, None, 2), (12, None, 1), (2, None, 0), (2, 2, 2)],
)
def test_a_short_training_has_a_short_warm_up(
    slices: Path, epochs: int | None, given: int | None, warmup: int
) -> None:
    content: dict[str, Any] = {"recipe": "strong", "data": {"path": str(slices)}}
    content |= {} if epochs is None else {"epochs": epochs}
    content |= {} if given is None else {"optimizer": {"warmup": given}}
    said: list[str] = []
    optimizer = complete_config(check_config(content), say=said.append)[0].optimizer
    assert (optimizer.warmup, optimizer.decay) == (warmup, "cosine")
    assert any("warm-up" in line for line in said) == (warmup < 2)
    if epochs == 2 and given is None:
        assert optimizer.lr_at(0, 2) == optimizer.lr


def test_given_settings_win(volumes: Path) -> None:
    given: dict[str, Any] = {
        "recipe": "strong", "data": {"path": str(volumes), "mode": "2d"}, "batch_size": 3,
        "ema": None, "loss": {"name": "nacl"}, "optimizer": {"lr": 0.5}, "augment": [],
        "model": {"name": "monai.SegResNet"},
    }  # fmt: skip
    config, _ = complete_config(check_config(given))
    assert (config.data.mode, config.batch_size, config.ema) == ("2d", 3, None)
    assert (config.loss.name, config.optimizer.lr, config.optimizer.name) == ("nacl", 0.5, "adamw")
    assert (config.augment, config.model.options) == ((), {})
    given["data"] = {"path": str(volumes), "size": [24, 24]}  # slices, therefore
    assert complete_config(check_config(given))[0].data.mode == "2d"
    given["data"] = {"path": str(volumes), "mode": "3d", "patch_size": [8, 16, 16]}
    given["model"] = {}
    config, _ = complete_config(check_config(given))
    assert config.data.patch_size == (8, 16, 16)
    assert config.model.options["strides"] == choose_levels((8, 16, 16), (1, 1, 1))["strides"]


def test_levels_follow_size_and_spacing() -> None:
    whole = choose_levels((192, 192), (1.5, 1.5))
    assert whole["filters"] == [32, 64, 128, 256, 512, 512]
    assert whole["strides"] == [[2, 2]] * 5
    thick = choose_levels((16, 64, 64), (4.0, 1.0, 1.0))
    assert thick["strides"] == [[1, 2, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]]
    assert thick["kernels"] == [[1, 3, 3], [1, 3, 3], [3, 3, 3], [3, 3, 3], [3, 3, 3]]


def test_patches_are_cubes_in_millimeters_within_the_volume() -> None:
    assert choose_patch((35, 51, 35), (1, 1, 1), 10**7) == (40, 56, 40)  # the whole volume
    assert choose_patch((155, 240, 240), (1, 1, 1), 5 << 19) == (104, 104, 104)
    z, y, x = choose_patch((40, 400, 400), (5, 1, 1), 5 << 19)
    assert y == x
    assert 0.8 < 5 * z / y < 1.25
    assert 2 * z * y * x <= 5 << 19


def test_an_unknown_recipe_is_named(slices: Path) -> None:
    config = check_config({"recipe": "storng", "data": {"path": str(slices)}})
    with pytest.raises(ValueError, match=r"`recipe`.*'strong'"):
        complete_config(config)


def test_strong_trains_in_3d(volumes: Path, tmp_path: Path) -> None:
    data = {"path": str(volumes), "per_case": 1, "patch_size": [8, 16, 16], "mode": "3d"}
    result = train(data=data, out=tmp_path / "run", epochs=1, **SMALL)
    (row,) = read_log(result.folder)
    assert row["val"]["nll"] > 0
    saved = read_run_config(result.folder)
    assert saved is not None
    assert (saved.recipe, saved.augment[0].name) == ("strong", "batched")


def test_a_resumed_run_keeps_what_was_chosen(
    slices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        **SMALL, "recipe": "strong", "data": {"path": str(slices)}, "optimizer": {"decay": "step"},
    }  # fmt: skip
    train(check_config(given | {"epochs": 2}), tmp_path / "whole")
    train(check_config(given | {"epochs": 1}), tmp_path / "run")
    monkeypatch.setattr(adapt, "_MAX_BATCH", 1)
    config = check_config(given | {"epochs": 2})
    assert complete_config(config)[0].batch_size == 1
    train(config, tmp_path / "run", resume=True)
    assert same(*(weights(tmp_path / name / "last.pt") for name in ("run", "whole")))


def test_command_line(slices: Path, tmp_path: Path) -> None:
    def segcal(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in arguments])
        return result.output if result.exception is None else str(result.exception)

    output = segcal("train", "--data", slices, "--print-config", "--epochs", 1)
    printed = yaml.safe_load(output)
    assert (printed["recipe"], printed["model"]["name"]) == ("strong", "norm_unet")
    assert (printed["epochs"], output[0]) == (1, "#")  # the choices are comments
    path = tmp_path / "config.yaml"
    path.write_text("recipe: paper\n")
    printed = yaml.safe_load(segcal("train", "--config", path, "--data", slices, "--print-config"))
    assert (printed["recipe"], printed["model"]["name"]) == ("paper", "unet")
    assert printed["device"] == "auto"
    device = ("--device", "cpu")
    output = segcal("train", "--config", path, "--data", slices, "--print-config", *device)
    assert yaml.safe_load(output)["device"] == "cpu"
    assert "device" in segcal("train", "--data", slices, "--print-config", "--device", "cpuu")
    assert "--out" in segcal("train", "--data", slices)
    assert {"strong", "paper"} <= set(segcal("list", "recipes").split())
