"""Every setting has an effect; the files of a run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import segcal.training
from helpers.runs import TINY_NET, phantom, same, settings, weights
from segcal.config import ConfigError
from segcal.core.errors import PathError
from segcal.core.provenance import git_commit
from segcal.data import open_dataset
from segcal.losses import NACLLoss
from segcal.metrics import CaseOptions, evaluate_case
from segcal.study import read_training
from segcal.study.run_folder import read_log
from segcal.training import TrainingError, train
from segcal.training.build import build_loss, build_state
from segcal.training.device import make_fabric
from segcal.training.state import to_memory_format
from segcal.training.validate import Validator, summarize


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantom(tmp_path_factory.mktemp("set") / "data", dims=2, cases=14, size=32)


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    train(settings(data), out)
    return out


CHANGES: dict[str, dict[str, Any]] = {
    "loss": {"loss": {"name": "ce"}},
    "loss options": {"loss": {"options": {"penalty_weight": 1.0}}},
    "dice": {"loss": {"dice_weight": 1.0}},
    "penalty schedule": {"loss": {"schedule": {"name": "constant", "options": {"value": 0.9}}}},
    "network options": {"model": {"options": {"filters": [4, 8], "pools": [4]}}},
    "divisible by": {"model": {**TINY_NET, "divisible_by": 64}},
    "optimizer": {"optimizer": {"name": "sgd"}},
    "optimizer options": {"optimizer": {"options": {"betas": [0.5, 0.9]}}},
    "lr": {"optimizer": {"lr": 1e-2}},
    "weight decay": {"optimizer": {"weight_decay": 0.1}},
    "warmup": {"optimizer": {"warmup": 1}},
    "cosine": {"optimizer": {"decay": "cosine"}},
    "poly": {"optimizer": {"decay": "poly"}},
    "milestones": {"optimizer": {"milestones": [1]}},
    "factor": {"optimizer": {"milestones": [1], "factor": 0.5}},
    "epochs": {"epochs": 1},
    "batch size": {"batch_size": 5},
    "seed": {"seed": 1},
    "precision": {"precision": "bf16-mixed"},
    "clip": {"clip": 1e-3},
    "augment": {"augment": [{"name": "RandFlipd", "options": {"prob": 1.0, "spatial_axis": 1}}]},
    "fold": {"data": {"fold": 1}},
    "size": {"data": {"size": [24, 24]}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_setting_changes_the_weights(what: str, data: Path, plain: Path, tmp_path: Path) -> None:
    base = {"model": TINY_NET, "data": {"path": str(data)}}
    changes = {
        key: {**base.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in CHANGES[what].items()
    }
    train(settings(data, **changes), tmp_path / "run")
    assert not same(weights(tmp_path / "run" / "last.pt"), weights(plain / "last.pt"))


@pytest.mark.parametrize(
    "changes",
    [
        {"channels_last": "on"},
        {"data": {"loader": "stream", "workers": 1}},
        {"deterministic": "on"},
    ],
    ids=str,
)
def test_a_speed_option_does_not_change_the_weights(
    changes: dict[str, Any], data: Path, plain: Path, tmp_path: Path
) -> None:
    train(settings(data, **changes), tmp_path / "run")
    ours, theirs = weights(tmp_path / "run" / "last.pt"), weights(plain / "last.pt")
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-5)


def test_patches_follow_their_settings(data: Path, tmp_path: Path) -> None:
    base: dict[str, Any] = {"mode": "3d", "patch_size": [1, 16, 16], "per_case": 2}
    flat: dict[str, Any] = {"name": "unet", "options": {"filters": [2, 2], "pools": [1]}}
    results = []
    for number, change in enumerate(({}, {"per_case": 3}, {"foreground": 1.0})):
        config = settings(data, data={**base, **change}, model=flat, epochs=1)
        train(config, tmp_path / str(number))
        results.append(weights(tmp_path / str(number) / "last.pt"))
    assert not same(results[0], results[1])
    assert not same(results[0], results[2])


def test_files_of_a_run(data: Path, plain: Path) -> None:
    names = {path.name for path in plain.iterdir()}
    assert names == {
        "config.yaml", "run.json", "log.jsonl", "last.pt", "last.prev.pt", "best.pt", ".lock",
    }  # fmt: skip
    about = json.loads((plain / "run.json").read_text())
    assert about["data_fingerprint"] == open_dataset(data).fingerprint
    assert about["versions"]["torch"] == torch.__version__
    assert about["commit"] is None or len(about["commit"].split("+")[0]) == 40
    assert yaml.safe_load((plain / "config.yaml").read_text())["batch_size"] == 4
    rows = [json.loads(line) for line in (plain / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1]
    assert set(rows[0]) == {"epoch", "lr", "losses", "val", "selected", "seconds"}
    assert rows[0]["val"]["region"] == "all"
    best = torch.load(plain / "best.pt", weights_only=True)
    assert best["metrics"]["dsc"] == max(row["val"]["dsc"] for row in rows)


def test_auto_precision_is_resolved_in_the_saved_config(data: Path, tmp_path: Path) -> None:
    train(settings(data, precision="auto", epochs=1), tmp_path / "run")
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["precision"]
    gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    assert saved == ("bf16-mixed" if gpu else "32")


def test_ema_is_the_running_average(data: Path, plain: Path, tmp_path: Path) -> None:
    train(settings(data, ema=0.5), tmp_path / "run")
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert same(state["model"], weights(plain / "last.pt"))  # it does not change the training
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    assert best["epoch"] != 1 or same(best["model"], state["ema"])
    # The first five steps (one in each epoch) keep nothing of the initial weights; after the next
    # step the average is halfway between the old and the new weights.
    train(settings(data, ema=0.9, epochs=6, batch_size=64), tmp_path / "one")
    first = torch.load(tmp_path / "one" / "last.prev.pt", weights_only=True)
    after = torch.load(tmp_path / "one" / "last.pt", weights_only=True)
    assert same(first["ema"], first["model"])
    for key, average in after["ema"].items():
        expected = (first["model"][key] + after["model"][key]) / 2
        torch.testing.assert_close(average, expected)


@pytest.mark.parametrize("select", ["dsc", "nll", "both"])
def test_select_chooses_the_checkpoint(select: str, data: Path, tmp_path: Path) -> None:
    optimizer = {"lr": 0.02}
    train(settings(data, select=select, epochs=6, optimizer=optimizer), tmp_path / "run")
    rows = read_log(tmp_path / "run")
    scores = {
        "dsc": [row["val"]["dsc"] for row in rows],
        "nll": [-row["val"]["nll"] for row in rows],
        "both": [math.log(max(row["val"]["dsc"], 1e-6)) - row["val"]["nll"] for row in rows],
    }[select]
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)["epoch"]
    assert best == scores.index(max(scores))
    assert [row["epoch"] for row in rows if row["selected"]][-1] == best
    summary = read_training(tmp_path / "run")
    assert summary is not None
    assert summary.tested == best + 1


def test_clip_bounds_the_gradient(data: Path, tmp_path: Path) -> None:
    """SGD with learning rate 1 changes the weights by the gradient: at most `clip` in one step."""
    config = settings(
        data, clip=0.01, epochs=1, batch_size=64, optimizer={"name": "sgd", "lr": 1.0}
    )
    train(config, tmp_path / "run")
    before, after = (weights(tmp_path / "run" / name) for name in ("last.prev.pt", "last.pt"))
    moved = sum(float((after[key] - before[key]).square().sum()) for key in after) ** 0.5
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_deep_supervision_halves_the_weight_of_each_head(data: Path) -> None:
    config = settings(data)
    state = build_state(config, make_fabric(config), open_dataset(data))
    target = torch.randint(0, 5, (2, 8, 8))
    heads = tuple(torch.randn(2, 5, 8, 8) for _ in range(3))
    total = sum(state.terms(heads, target).values())
    by_hand = sum(
        w * NACLLoss()(h, target) for w, h in zip((4 / 7, 2 / 7, 1 / 7), heads, strict=True)
    )
    torch.testing.assert_close(total, by_hand)


def test_a_network_with_deep_supervision_trains(data: Path, tmp_path: Path) -> None:
    options = {
        "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16], "deep_supervision": True, "deep_supr_num": 1,
    }  # fmt: skip
    config = settings(data, model={"name": "monai.DynUNet", "options": options}, epochs=1)
    train(config, tmp_path / "run")
    before, after = (weights(tmp_path / "run" / name) for name in ("last.prev.pt", "last.pt"))
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    assert any("deep_supervision_heads.0" in key for key in moved)


def test_the_validator_agrees_with_evaluate_case(data: Path, plain: Path) -> None:
    from segcal.models import load_model

    dataset = open_dataset(data)
    case = dataset.part("val")[0]
    model = load_model(plain / "best.pt")
    validator = Validator(
        [case], dataset.num_classes, groups=None, device=torch.device("cpu"), batch_size=2
    )
    scores = validator.score(model)
    assert scores is not None
    image = torch.from_numpy(case.image())
    with torch.no_grad():
        probs = model(image.transpose(0, 1)).softmax(1).transpose(0, 1)
    options = CaseOptions(regions=("all",))
    result = evaluate_case(probs, case.label(), case.spacing_mm, case=case.name, options=options)
    value = {(row.metric, row.label): row.value for row in result.rows}
    assert scores[0].dsc == pytest.approx({k: value["dsc", k] for k in ("1", "2", "3", "4")})
    assert scores[0].ece == pytest.approx(value["ece", "all"])
    assert scores[0].cece == pytest.approx(value["cece", "all"])
    assert summarize(scores)["dsc"] == pytest.approx(sum(scores[0].dsc.values()) / 4)
    assert validator.score(model, stop=lambda: True) is None


def test_tensorboard(data: Path, tmp_path: Path) -> None:
    train(settings(data, tensorboard=True, epochs=1), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": {"name": "nacll"}}, "`loss`.*Did you mean 'nacl'"),
        ({"loss": {"options": {"patch": 3}}}, "patch"),
        ({"loss": {"name": "ce", "schedule": {"name": "constant", "options": {"value": 1.0}}}},
         "has none"),
        ({"optimizer": {"name": "adm"}}, "Did you mean 'adam'"),
        ({"optimizer": {"options": {"beta": 1}}}, "beta"),
        ({"model": {"name": "unt"}}, "`model`: .*Did you mean 'unet'.*monai"),
        ({"augment": [{"name": "RandFlip"}]}, "Did you mean 'RandFlipd'"),
        ({"augment": [{"name": "RandFlipd", "options": {"probability": 1}}]}, "probability"),
        ({"data": {"path": "/nowhere"}}, "/nowhere"),
        ({"data": {"fold": 99}}, "`fold`"),
    ],
)  # fmt: skip
def test_invalid_settings_are_named_before_anything_is_written(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(settings(data, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_training_without_data_names_the_argument(tmp_path: Path, resume: bool) -> None:
    with pytest.raises(ValueError, match="argument `data`"):
        train(out=tmp_path / "run", resume=resume)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_not_overwritten(data: Path, plain: Path, tmp_path: Path) -> None:
    with pytest.raises(PathError, match="not empty; continue it with --resume"):
        train(settings(data), plain)
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(PathError, match="holds files but no run; choose another --out"):
            train(settings(data), tmp_path, resume=resume)


def test_out_of_memory_names_the_setting_to_lower(data: Path, tmp_path: Path) -> None:
    huge = {"options": {"filters": [4_000_000, 4_000_000], "pools": [2]}}
    with pytest.raises(TrainingError, match=r"out of memory.*`batch_size` \(4\)"):
        train(settings(data, model=huge), tmp_path / "run")


def test_dice_has_the_ignore_index_of_the_loss() -> None:
    loss, _ = build_loss(settings(Path("x"), loss={
        "name": "ce", "options": {"ignore_index": 3}, "dice_weight": 0.5}).loss)  # fmt: skip
    logits = torch.randn(1, 4, 4, 4)
    target = torch.full((1, 4, 4), 3)
    assert float(loss(logits, target)) == 0


def test_config_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)


def test_tab_completion_lists_lazy_names() -> None:
    assert set(segcal.training.__all__) <= set(dir(segcal.training))


@pytest.mark.parametrize("shape", [(2, 1, 4, 6), (2, 3, 4, 6), (1, 1, 4, 6, 8)])
def test_images_have_the_strides_of_their_memory_format(shape: tuple[int, ...]) -> None:
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    image = torch.randn(shape)
    placed = to_memory_format(image, last)
    # The strides of a new tensor: torch would not change those of an image of one channel.
    assert placed.stride() == torch.empty(shape, memory_format=last).stride()
    assert torch.equal(placed, image)
    assert to_memory_format(image, torch.contiguous_format) is image


def test_the_commit_can_be_set_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    git_commit.cache_clear()
    before = git_commit()
    monkeypatch.setenv("SEGCAL_COMMIT", "abc123")
    git_commit.cache_clear()
    assert git_commit() == "abc123" != before
    monkeypatch.undo()
    git_commit.cache_clear()
