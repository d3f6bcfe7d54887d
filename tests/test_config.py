"""The config: YAML and back, overrides, and errors that name the nearest key."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from segcal.config import (
    ConfigError,
    OptimizerConfig,
    TrainConfig,
    changed_values,
    check_config,
    make_config,
    to_yaml,
)


def test_defaults_are_the_papers_protocol() -> None:
    config = TrainConfig()
    assert (config.epochs, config.batch_size, config.loss.name) == (100, 16, "nacl")
    assert (config.model.name, config.optimizer.name) == ("unet", "adam")
    assert config.optimizer.weight_decay == 0
    rates = [config.optimizer.lr_at(epoch, 100) for epoch in (0, 49, 50, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
    assert (config.augment, config.clip, config.ema, config.tensorboard) == ((), None, None, False)


def test_warmup_and_decay() -> None:
    def rates(**options: Any) -> list[float]:
        return [OptimizerConfig(lr=1.0, **options).lr_at(epoch, 6) for epoch in (0, 1, 2, 4, 5)]

    assert rates(warmup=2, decay="cosine") == pytest.approx(
        [1 / 3, 2 / 3, 1, 0.5, (1 + math.cos(0.75 * math.pi)) / 2]
    )
    assert rates(warmup=2, decay="poly") == pytest.approx([1 / 3, 2 / 3, 1, 0.5**0.9, 0.25**0.9])
    assert rates(warmup=1, milestones=(2,)) == pytest.approx([0.5, 1, 0.1, 0.1, 0.1])


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = make_config(
        overrides=[
            "loss.dice_weight=1", "loss.schedule={name: linear, options: {start: 0, end: 0.1}}",
            "compile=off", "precision=32", "data.mode=3d", "data.patch_size=[8, 32, 32]",
            "augment=[{name: RandFlipd, options: {prob: 0.5}}]", "optimizer.milestones=[2, 4]",
        ]
    )  # fmt: skip
    assert (config.compile, config.precision) == ("off", "32")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert make_config(path) == config
    assert check_config(yaml.safe_load(path.read_text())) == config


def test_flags_override_the_file_and_set_overrides_flags(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("epochs: 3\nseed: 1\nbatch_size: 2\nloss: {options: {penalty_weight: 1e-3}}\n")
    config = make_config(path, flags={"seed": 2, "epochs": 4}, overrides=["epochs=5"])
    assert (config.batch_size, config.seed, config.epochs) == (2, 2, 5)
    assert config.loss.options == {
        "penalty_weight": 1e-3
    }  # a number, which YAML 1.1 would read as text
    assert make_config(path, overrides=["loss.options.penalty_weight=2e-1"]).loss.options == {
        "penalty_weight": 0.2
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "config: has no key `epoch`.*Did you mean 'epochs'"),
        ("optimiser.lr=1", "`optimiser`.*Did you mean 'optimizer'"),
        ("network.name=unet", "`network`.*Did you mean 'model'"),
        ("optimizer.learning=1", "`optimizer` has no key `learning`"),
        ("data.patchsize=[1,1,1]", "`data` has no key `patchsize`.*Did you mean 'patch_size'"),
        ("loss.schedule={nam: x}", "`loss.schedule` has no key `nam`.*Did you mean 'name'"),
        ("epochs=0", "`epochs`.*0"),
        ("precision=64", "`precision`.*64"),
        ("ema=1.5", "`ema`"),
        ("data.mode=3d", "`data` needs `patch_size`"),
        ("data.patch_size=[1,2,3]", "only when `mode` is 3d"),
        ("epochs.x=3", "`epochs`"),
        ("epochs", "key=value"),
        ("epochs=[", "epochs=.*YAML"),
    ],
)
def test_invalid_settings_are_named_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_config(overrides=[override])
    assert "\n" not in str(caught.value)


def test_invalid_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read"):
        make_config(tmp_path / "gone.yaml")
    for text in ("a: [", "- 1\n- 2\n", "epocs: 3\n"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.yaml: "):
            make_config(tmp_path / "bad.yaml")


def test_changed_keys_are_dotted() -> None:
    old = make_config(overrides=["loss.options={penalty_weight: 0.1}"])
    new = make_config(overrides=["loss.options={penalty_weight: 0.2}", "epochs=7"])
    assert changed_values(old, new) == {
        "epochs": (old.epochs, 7),
        "loss.options.penalty_weight": (0.1, 0.2),
    }
    assert changed_values(old, old) == {}
    # Options where there were none: an empty section is no value of its own.
    none = make_config(overrides=["epochs=7"])
    assert none.loss.options == {}
    assert changed_values(none, new) == {"loss.options.penalty_weight": (None, 0.2)}
    assert changed_values(new, none) == {"loss.options.penalty_weight": (0.2, None)}
    # What a recipe fills in is no change; what is set is compared.
    filled = check_config({"recipe": "strong", "batch_size": 9, "ema": 0.9, "clip": 2.0})
    assert changed_values(filled, check_config({"recipe": "strong", "ema": 0.9})) == {}
    other = check_config({"recipe": "strong", "ema": 0.8})
    assert changed_values(filled, other) == {"ema": (0.9, 0.8)}
    assert "clip" in changed_values(filled, check_config({"recipe": "paper"}))
