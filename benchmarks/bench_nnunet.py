"""nnU-Net and segcal: accuracy and calibration after the same training time, on the same data.

python benchmarks/bench_nnunet.py --raw nnUNet_raw/Dataset027_ACDC --work WORK [--budgets 120 300]
       [--methods default nacl proper_dice] [--mode sequential|shared] [--speed] [--deadline S]

The raw data set holds imagesTr, labelsTr (training and validation cases), imagesTs, labelsTs (test
cases), dataset.json and splits_final.json with one fold. Both programs train on the training cases
of that fold, with the settings that they choose for the data: nnU-Net `2d` if slices are at least
three times as thick as pixels, otherwise `3d_fullres`; segcal its recipe `strong`. Test cases are
predicted as each program does by default (nnU-Net averages mirror images, segcal does not), in the
geometry of the files, and both are measured by the same functions: DSC, HD95, and ECE per region,
before and after calibration that is fitted on the predictions of the validation cases.

Budgets are seconds of wall clock from the start of the training process until its last checkpoint,
imports and compilation included. Preparation of the data and prediction are not included; their
times are recorded. In nnU-Net the learning rate decays with the elapsed share of the budget instead
of the number of epochs; epochs of 250 steps and everything else are nnU-Net's. segcal trains a
number of epochs that is computed from the time per epoch of a short warm-up run, later of its last
run. The warm-up runs of both also fill the cache of torch.compile. `--mode shared` trains both at
the same time on one device: each gets a share of the device and the cores.

The validation curve of nnU-Net is computed afterwards from weights that were saved during the
training (the clock stops while they are saved), without mirror images; that of segcal is its log.
Both are DSC per case on the grid of the training data. Everything is kept in --work: a repeated
command continues. Writes results/nnunet_{cuda,cpu}.json after every step and prints a table.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from _common import RESULTS, environment, write_results

from segcal.training.adapt import ANISOTROPIC

# Method → nnU-Net's trainer, arguments of `segcal train`.
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "default": ("nnUNetTrainer", ()),
    "nacl": ("nnUNetTrainerNACL", ("--loss", "nacl")),
    "proper_dice": ("nnUNetTrainerProperDice", ("--loss", "ce_proper_dice")),
}
PROGRAMS = ("nnunet", "segcal")
REGIONS = ("all", "foreground", "boundary", "predicted_boundary")
LEVELS = (0.70, 0.80, 0.85, 0.88, 0.89, 0.90)
# A run that exceeds its budget by this factor is stopped; its best checkpoint is used.
PATIENCE = 1.02
SEGCAL = [sys.executable, "-m", "segcal"]
Row = dict[str, Any]


# Processes that are started by `main`, as `bench_nnunet.py --stage NAME SPEC`.


def clocked(base: type, spec: Row, log: Path) -> type:
    """A trainer that stops after the budget; the learning rate follows the clock."""
    end_of_training = type("EndOfTraining", (Exception,), {})

    class Clock:
        """In place of nnU-Net's scheduler: polynomial decay over the budget."""

        def __init__(self, optimizer: Any, initial_lr: float) -> None:
            self.optimizer, self.initial_lr, self.stopped = optimizer, initial_lr, 0.0

        @property
        def seconds(self) -> float:
            return time.time() - spec["started"] - self.stopped

        def step(self, _: int | None = None) -> None:
            left = max(1 - self.seconds / spec["budget"], 0.0)
            for group in self.optimizer.param_groups:
                group["lr"] = self.initial_lr * left**0.9

    class Clocked(base):  # type: ignore[misc]
        steps = 0
        first_step: float = 0

        def configure_optimizers(self) -> tuple[Any, Clock]:
            optimizer, _ = super().configure_optimizers()
            self.pending = [spec["budget"] * share for share in spec["snapshots"]]
            return optimizer, Clock(optimizer, self.initial_lr)

        def train_step(self, batch: Row) -> Row:
            clock = self.lr_scheduler
            if clock.seconds >= spec["budget"]:
                raise end_of_training
            if self.pending and clock.seconds >= self.pending[0]:
                self.snapshot(self.pending.pop(0))
            clock.step()
            done: Row = super().train_step(batch)
            self.steps += 1
            self.first_step = self.first_step or clock.seconds
            return done

        def snapshot(self, at: float) -> None:
            start = time.time()
            net = getattr(self.network, "_orig_mod", self.network)
            weights = {k: v.detach().cpu() for k, v in net.state_dict().items()}
            torch.save(weights, log.with_name(f"snapshot_{at:.1f}.pt"))
            self.lr_scheduler.stopped += time.time() - start

        def on_epoch_end(self) -> None:
            super().on_epoch_end()
            dice = float(self.logger.get_value("mean_fg_dice", step=-1))
            append(log, {"seconds": self.lr_scheduler.seconds, "steps": self.steps, "dice": dice})

        def run_training(self) -> None:
            try:
                super().run_training()
            except end_of_training:
                self.on_train_end()

    Clocked.__name__ = base.__name__
    return Clocked


def nnunet_trainer(spec: Row, log: Path) -> Any:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    from segcal.integrations.nnunet import trainers

    base = getattr(trainers, spec["trainer"], nnUNetTrainer)
    folder = Path(os.environ["nnUNet_preprocessed"], spec["dataset"])  # noqa: SIM112
    plans = json.loads((folder / "nnUNetPlans.json").read_text()) | {"continue_training": False}
    return clocked(base, spec, log)(
        plans, spec["configuration"], 0, json.loads((folder / "dataset.json").read_text()),
        torch.device(spec["device"]),
    )  # fmt: skip


def train_nnunet(spec: Row) -> None:
    """One training; what `nnUNetv2_train` does, with the clock."""
    folder = Path(spec["folder"])
    torch.backends.cudnn.benchmark = True
    trainer = nnunet_trainer(spec, folder / "epochs.jsonl")
    trainer.num_iterations_per_epoch = spec["iterations"]
    trainer.num_val_iterations_per_epoch = max(spec["iterations"] // 5, 1)
    trainer.run_training()
    result = {
        "seconds": time.time() - spec["started"],
        "snapshot_seconds": trainer.lr_scheduler.stopped,
        "start_seconds": trainer.first_step,
        "steps": trainer.steps,
        "epochs": trainer.current_epoch,
        **describe_nnunet(trainer),
    }
    write_results(folder / "trained.json", result)


def describe_nnunet(trainer: Any) -> Row:
    size = sum(p.numel() for p in trainer.network.parameters())
    patch = [int(n) for n in trainer.configuration_manager.patch_size]
    return {"batch_size": trainer.batch_size, "patch_size": patch, "parameters": size}


def predict_nnunet(spec: Row) -> None:
    """Validation and test cases with probabilities; the validation curve."""
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    folder = Path(spec["folder"])
    spec = {**spec, "started": time.time(), "snapshots": []}
    trainer = nnunet_trainer(spec, folder / "unused.jsonl")
    os.environ["nnUNet_compile"] = "f"  # noqa: SIM112
    trainer.initialize()
    mirror = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()[3]
    trainer.set_deep_supervision_enabled(False)
    cuda = spec["device"] == "cuda"

    def predictor(weights: Mapping[str, Any], *, mirrored: bool) -> Any:
        made = nnUNetPredictor(
            use_mirroring=mirrored, perform_everything_on_device=cuda, allow_tqdm=False,
            device=torch.device(spec["device"]),
        )  # fmt: skip
        made.manual_initialization(
            trainer.network, trainer.plans_manager, trainer.configuration_manager, [weights],
            trainer.dataset_json, type(trainer).__name__, mirror if mirrored else None,
        )  # fmt: skip
        return made

    kept = {"map_location": "cpu", "weights_only": False}
    final = torch.load(next(folder.glob("**/checkpoint_final.pth")), **kept)["network_weights"]
    for part in ("val", "test"):
        start, out = time.time(), folder / part
        images = sorted(Path(spec["images"][part]).glob("*_0000.nii.gz"))
        targets = [str(out / path.name.removesuffix("_0000.nii.gz")) for path in images]
        out.mkdir(exist_ok=True)
        predictor(final, mirrored=True).predict_from_files(
            [[str(path)] for path in images], targets, save_probabilities=True,
            num_processes_preprocessing=spec["workers"],
            num_processes_segmentation_export=spec["workers"],
        )  # fmt: skip
        write_results(
            folder / f"predicted_{part}.json",
            {"seconds": time.time() - start, "cases": len(images)},
        )
    curve: list[Row] = []
    for path in sorted(folder.glob("snapshot_*.pt"), key=snapshot_time):
        made = predictor(torch.load(path, weights_only=True), mirrored=False)
        curve.append({"seconds": snapshot_time(path), "dsc": dsc_of_cases(trainer, made)})
        write_results(folder / "curve.json", {"curve": curve})


def snapshot_time(path: Path) -> float:
    return float(path.stem.partition("_")[2])


def dsc_of_cases(trainer: Any, predictor: Any) -> float:
    """Mean DSC over validation cases and structures, on nnU-Net's preprocessed grid."""
    _, data = trainer.get_tr_and_val_datasets()
    values = []
    for case in data.identifiers:
        image, target, _, _ = data.load_case(case)
        logits = predictor.predict_logits_from_preprocessed_data(torch.from_numpy(image[:]))
        predicted, truth = logits.argmax(0).cpu(), torch.from_numpy(target[0].astype("int16"))
        for label in range(1, len(logits)):
            a, b = predicted == label, truth == label
            if size := int(a.sum() + b.sum()):
                values.append(2 * int((a & b).sum()) / size)
    return sum(values) / len(values)


def predict_segcal(spec: Row) -> None:
    folder = Path(spec["folder"])
    for part in ("val", "test"):
        start = time.time()
        subprocess.run(
            [*SEGCAL, "predict", str(folder / "run"), "--input", spec["images"][part],
             "--out", str(folder / part), "--output", "probs", "--to", "npz",
             "--device", spec["device"], "--overwrite"], check=True,
        )  # fmt: skip
        write_results(folder / f"predicted_{part}.json", {"seconds": time.time() - start})


def evaluate(spec: Row) -> None:
    """Calibrators from the validation cases; DSC, HD95 and ECE of the test cases."""
    from segcal.evaluation import apply_folder, audit_predictions, fit_pairs
    from segcal.predictions import find_pairs

    folder, raw, jobs = Path(spec["folder"]), Path(spec["raw"]), spec["workers"]
    networks = {"raw": folder / "test"}
    chosen: Row = {}
    pairs = find_pairs(folder / "val", raw / "labelsTr")
    for method in spec["calibrators"]:
        # Cross-validation only where it chooses the method.
        folds = 5 if method == "auto" else 0
        fitted = fit_pairs(
            pairs, method, from_probs=True, folds=folds, patient=spec["patient"], jobs=jobs
        )
        fitted.calibrator.save(folder / f"{method}.json")
        chosen[method] = type(fitted.calibrator).__name__
        networks[method] = folder / f"test_{method}"
        apply_folder(
            fitted.calibrator, folder / "test", networks[method], from_probs=True, jobs=jobs,
            overwrite=True,
        )  # fmt: skip
    audit = audit_predictions(
        networks, raw / "labelsTs", folder / "audit", patient=spec["patient"], jobs=jobs,
        overwrite=True,
    )  # fmt: skip
    result = {title: means(done.table()) for title, done in audit.networks.items()}
    write_results(folder / "evaluation.json", {"calibrators": chosen, "test": result})


def means(table: Any) -> Row:
    """Means over test cases, of DSC and HD95 also over structures, and undefined values."""
    out: Row = {}
    for metric in ("dsc", "hd95_mm"):
        rows = table[(table["metric"] == metric) & (table["label"] != "all")]
        per_case = rows.groupby("case", observed=True)["value"].mean()
        out[metric] = float(per_case.mean())
        out[f"{metric}_undefined"] = int(rows["value"].isna().sum())
        out[f"{metric}_by_case"] = {str(case): float(v) for case, v in per_case.items()}
    for metric in ("ece", "nll"):
        for region in REGIONS:
            rows = table[(table["metric"] == metric) & (table["region"] == region)]
            rows = rows[rows["label"] == "all"]
            out[f"{metric}_{region}"] = float(rows["value"].mean())
    return out


def speed_nnunet(spec: Row) -> None:
    """Steps per second with nnU-Net's loader, and of the same batch again and again."""
    folder = Path(spec["folder"])
    spec = {**spec, "snapshots": [], "budget": 1e9, "started": time.time()}
    torch.backends.cudnn.benchmark = True
    trainer = nnunet_trainer(spec, folder / "unused.jsonl")
    trainer.on_train_start()
    trainer.on_train_epoch_start()
    batches = trainer.dataloader_train
    batch = next(batches)
    loaded = rate(lambda: trainer.train_step(next(batches)), spec["seconds"])
    repeated = rate(lambda: trainer.train_step(batch), spec["seconds"])
    result = {"steps_per_s": loaded, "steps_per_s_without_loading": repeated}
    write_results(folder / "speed.json", {**result, **describe_nnunet(trainer)})
    trainer.disable_checkpointing = True
    trainer.on_train_end()


def rate(step: Callable[[], object], seconds: float) -> float:
    """Calls per second after a warm-up; every step of nnU-Net waits for the loss."""
    for _ in range(20 if torch.cuda.is_available() else 1):
        step()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        done += 1
    return done / (time.perf_counter() - start)


STAGES = {
    "train_nnunet": train_nnunet,
    "predict_nnunet": predict_nnunet,
    "predict_segcal": predict_segcal,
    "evaluate": evaluate,
    "speed_nnunet": speed_nnunet,
}


# The benchmark.


class Benchmark:
    """One raw data set: prepared data, runs and results, each in a folder of `work`."""

    def __init__(self, raw: Path, args: argparse.Namespace) -> None:
        self.raw, self.args = raw.resolve(), args
        self.work = (args.work / raw.name).resolve()
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.prepared = self.work / "segcal"
        self.environment = {
            **os.environ,
            "nnUNet_raw": str(self.raw.parent),
            "nnUNet_preprocessed": str(self.work / "preprocessed"),
            "nnUNet_results": str(self.work / "results"),
            "TORCHINDUCTOR_CACHE_DIR": str(args.work.resolve() / "inductor"),
        }
        split = json.loads((self.raw / "splits_final.json").read_text())[0]
        self.images = {"val": str(self.work / "imagesVal"), "test": str(self.raw / "imagesTs")}
        Path(self.images["val"]).mkdir(exist_ok=True)
        for case in split["val"]:
            link = Path(self.images["val"], f"{case}_0000.nii.gz")
            if not link.exists():
                link.symlink_to(self.raw / "imagesTr" / link.name)
        self.configuration = "2d" if self.thick_slices() else "3d_fullres"

    def thick_slices(self) -> bool:
        import nibabel as nib

        first = next(iter(sorted((self.raw / "labelsTr").glob("*.nii.gz"))))
        x, y, z = nib.load(first).header.get_zooms()[:3]
        return bool(z >= ANISOTROPIC * min(x, y))

    def start(self, name: str, command: list[str], results: Path | None = None) -> Any:
        env = self.environment | ({"nnUNet_results": str(results)} if results else {})
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)

    def stage(self, stage: str, name: str, spec: Row) -> Any:
        folder = Path(spec["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        full = {
            "dataset": self.raw.name, "configuration": self.configuration, "raw": str(self.raw),
            "images": self.images, "device": self.args.device, "workers": self.args.workers,
            "started": time.time(), "snapshots": [], "budget": 1e9, **spec,
        }  # fmt: skip
        path = folder / f"{stage}.json"
        path.write_text(json.dumps(full))
        command = [sys.executable, __file__, "--stage", stage, str(path)]
        return self.start(f"{name}_{stage}", command, folder / "nnunet")

    def prepare(self) -> None:
        """Both at the same time; the times of both are recorded."""
        file = self.work / "prepared.json"
        if file.exists():
            return
        number = str(int(self.raw.name[7:10]))
        entry = "from nnunetv2.experiment_planning.plan_and_preprocess_entrypoints import "
        entry += "plan_and_preprocess_entry as run; run()"
        processes = {
            "nnunet": self.start("prepare_nnunet", [
                sys.executable, "-c", entry, "-d", number, "-c", self.configuration,
                "-np", str(self.args.workers), "-npfp", str(self.args.workers),
            ]),
            "segcal": self.start("prepare_segcal", [
                *SEGCAL, "prepare", "folder", "--source", str(self.raw), "--out",
                str(self.prepared), "--splits", str(self.raw / "splits_final.json"),
                "--workers", str(self.args.workers), *self.patient_option("--patient-per-case"),
            ]),
        }  # fmt: skip
        seconds = wait(processes)
        target = self.work / "preprocessed" / self.raw.name / "splits_final.json"
        target.write_text((self.raw / "splits_final.json").read_text())
        write_results(file, {f"{name}_s": value for name, value in seconds.items()})

    def patient_option(self, otherwise: str) -> list[str]:
        return ["--patient", self.args.patient] if self.args.patient else [otherwise]

    def folder(self, program: str, method: str, budget: float | str) -> Path:
        return self.work / f"{program}_{method}_{budget}"

    def start_nnunet(self, method: str, budget: float, folder: Path, snapshots: int) -> Any:
        shares = [(n + 1) / (snapshots + 1) for n in range(snapshots)]
        return self.stage("train_nnunet", folder.name, {
            "folder": str(folder), "trainer": METHODS[method][0], "budget": budget,
            "snapshots": shares, "iterations": self.args.iterations,
        })  # fmt: skip

    def start_segcal(self, method: str, epochs: int, folder: Path, *extra: str) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        compiled = "on" if self.args.device == "cuda" else "off"
        return self.start(f"{folder.name}_train", [
            *SEGCAL, "train", "--data", str(self.prepared), "--out", str(folder / "run"),
            "--epochs", str(epochs), "--set", f"device={self.args.device}",
            "--set", f"compile={compiled}", *METHODS[method][1], *self.args.segcal_set, *extra,
        ])  # fmt: skip

    def warm_up(self, method: str) -> None:
        """A short run of each: compiled code is cached, and segcal's epochs are timed."""
        folders = {program: self.folder(program, method, "warmup") for program in PROGRAMS}
        todo = [p for p in PROGRAMS if not (folders[p] / "trained.json").exists()]
        run = {
            "nnunet": lambda: self.start_nnunet(method, self.args.warmup, folders["nnunet"], 0),
            "segcal": lambda: self.start_segcal(method, 4, folders["segcal"]),
        }
        self.train_all({program: (folders[program], run[program]) for program in todo}, {})

    def epochs(self, method: str, budget: float) -> int:
        """Epochs of segcal that fit into the budget, from the last run of the method."""
        known = sorted(self.work.glob(f"segcal_{method}_*/trained.json"), key=os.path.getmtime)
        last = json.loads(known[-1].read_text())
        return max(int((budget - last["start_seconds"]) / last["epoch_seconds"]), 2)

    def train(self, method: str, budget: float) -> None:
        folders = {program: self.folder(program, method, budget) for program in PROGRAMS}
        todo = [p for p in PROGRAMS if not (folders[p] / "trained.json").exists()]
        if not list(self.work.glob(f"segcal_{method}_*/trained.json")):
            todo = [p for p in todo if p != "segcal"]  # its warm-up failed
        snapshots = self.args.snapshots
        run = {
            "nnunet": lambda: self.start_nnunet(method, budget, folders["nnunet"], snapshots),
            "segcal": lambda: self.start_segcal(
                method, self.epochs(method, budget), folders["segcal"]
            ),
        }
        limits = dict.fromkeys(PROGRAMS, budget * PATIENCE)
        self.train_all({program: (folders[program], run[program]) for program in todo}, limits)

    def train_all(self, runs: dict[str, tuple[Path, Callable[[], Any]]], limits: Row) -> None:
        groups = [list(runs)] if self.args.mode == "shared" else [[name] for name in runs]
        for folder, _ in runs.values():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
        for group in groups:
            started = {name: time.time() for name in group}
            processes = {name: runs[name][1]() for name in group}
            rows: list[Row] = []
            seen: set[int] = set()

            def watch(rows: list[Row] = rows, seen: set[int] = seen, began: Row = started) -> None:
                """Note when each line of segcal's log was written."""
                if "segcal" in began:
                    log = runs["segcal"][0] / "run" / "log.jsonl"
                    for number, row in enumerate(read_lines(log)):
                        if number not in seen:
                            seen.add(number)
                            rows.append({**row, "at": time.time() - began["segcal"]})

            seconds = wait(processes, limits, watch)
            if "segcal" in group:
                self.record_segcal(runs["segcal"][0], rows, seconds["segcal"])

    def record_segcal(self, folder: Path, rows: list[Row], seconds: float) -> None:
        if not rows:
            print(f"{folder}: the training failed; see {self.logs}", flush=True)
            return
        later = [row["seconds"] for row in rows[len(rows) // 2 :]]
        epoch = sum(later) / len(later)
        curve = [{"seconds": row["at"], "dsc": row["val"]["dsc"]} for row in rows if "val" in row]
        shape = read_config(folder / "run" / "config.yaml")
        write_results(folder / "trained.json", {
            "seconds": seconds, "epochs": len(rows), "epoch_seconds": epoch,
            "start_seconds": max(seconds - epoch * len(rows), 0.0), **shape,
        })  # fmt: skip
        write_results(folder / "curve.json", {"curve": curve})

    def speed(self, method: str) -> None:
        """Each alone: steps per second with nnU-Net's batch and patch size."""
        folder = self.folder("nnunet", method, "speed")
        if not (folder / "speed.json").exists():
            spec = {"folder": str(folder), "trainer": METHODS[method][0], "seconds": 6.0}
            wait({"nnunet": self.stage("speed_nnunet", folder.name, spec)})
        theirs = json.loads((folder / "speed.json").read_text())
        ours = self.folder("segcal", method, "speed")
        if (ours / "speed.json").exists():
            return
        mode, key = ("2d", "size") if self.configuration == "2d" else ("3d", "patch_size")
        settings = {
            "data.mode": mode, f"data.{key}": json.dumps(theirs["patch_size"]),
            "batch_size": theirs["batch_size"],
            "validate_every": 1000,
        }  # fmt: skip
        extra = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
        wait({"segcal": self.start_segcal(method, self.args.speed_epochs, ours, *extra)})
        # The first epoch compiles, the last one validates.
        rows = list(read_lines(ours / "run" / "log.jsonl"))[1:-1]
        log = (self.logs / f"{ours.name}_train.log").read_text()
        steps = int(log.split(" steps per epoch")[0].split()[-1])
        fastest = min(row["seconds"] for row in rows)
        write_results(ours / "speed.json", {"steps_per_s": steps / fastest, "steps": steps})

    def finish(self, runs: list[tuple[str, str, float]], stage: str, done: str) -> None:
        """Predict or evaluate several runs at the same time."""
        processes = {}
        for program, method, budget in runs:
            folder = self.folder(program, method, budget)
            if (folder / "trained.json").exists() and not (folder / done).exists():
                name = f"{stage}_{program}" if stage == "predict" else stage
                processes[folder.name] = self.stage(name, folder.name, {
                    "folder": str(folder), "trainer": METHODS[method][0],
                    "calibrators": self.args.calibrators, "patient": self.args.patient,
                })  # fmt: skip
        wait(processes)

    def results(self) -> Row:
        """Everything that was measured so far."""
        rows = []
        for folder in sorted(p.parent for p in self.work.glob("*/trained.json")):
            program, rest = folder.name.split("_", 1)
            method, budget = rest.rsplit("_", 1)
            if budget == "warmup":
                continue
            row = {"program": program, "method": method, "budget_s": float(budget)}
            for name in ("trained", "predicted_val", "predicted_test", "curve", "evaluation"):
                if (folder / f"{name}.json").exists():
                    row[name] = json.loads((folder / f"{name}.json").read_text())
            if curve := row.get("curve", {}).get("curve"):
                row["seconds_to_dsc"] = {
                    f"{level:.2f}": next((p["seconds"] for p in curve if p["dsc"] >= level), None)
                    for level in LEVELS
                }
            rows.append(row)
        speeds = {p.parent.name: json.loads(p.read_text()) for p in self.work.glob("*/speed.json")}
        prepared = self.work / "prepared.json"
        return {
            "configuration": self.configuration,
            "prepared": json.loads(prepared.read_text()) if prepared.exists() else None,
            "speed": speeds,
            "runs": rows,
        }


def append(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_lines(path: Path) -> Iterator[Row]:
    """The complete lines of a log that is being written."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def read_config(path: Path) -> Row:
    import yaml

    config = yaml.safe_load(path.read_text())
    data = config["data"]
    size = data.get("patch_size") or data.get("size")
    about = {"mode": data["mode"], "loss": config["loss"]["name"]}
    return {"batch_size": config["batch_size"], "patch_size": size, **about}


def wait(
    processes: Mapping[str, Any], limits: Mapping[str, float] = {}, watch: Any = None
) -> dict[str, float]:
    """Seconds of each process; those over their limit get SIGTERM."""
    start, seconds = time.time(), dict[str, float]()
    told = start
    while len(seconds) < len(processes):
        time.sleep(0.1)
        if watch is not None:
            watch()
        now = time.time() - start
        for name, process in processes.items():
            if name not in seconds and process.poll() is not None:
                seconds[name] = now
                print(f"  {name}: exit code {process.returncode} after {now:.1f} s", flush=True)
            elif name not in seconds and now > limits.get(name, float("inf")):
                process.send_signal(signal.SIGTERM)
                limits = {**limits, name: float("inf")}
        if time.time() - told > 30:
            told = time.time()
            print(f"  {now:.0f} s: waiting for {set(processes) - set(seconds)}", flush=True)
    if watch is not None:
        watch()
    return seconds


def table(results: Mapping[str, Row]) -> str:
    lines = [
        "| data | method | program | budget, s | used, s | epochs | calibrated | DSC | HD95, mm | "
        + " | ".join(f"ECE `{region}`" for region in REGIONS) + " |",
        "|---|---|---|---:|---:|---:|---|---:|---:|" + "---:|" * len(REGIONS),
    ]  # fmt: skip
    for name, content in results.items():
        for row in content["runs"]:
            about = f"{name} | {row['method']} | {row['program']} | {row['budget_s']:g} | "
            about += f"{row['trained']['seconds']:.0f} | {row['trained']['epochs']}"
            for how, values in row.get("evaluation", {}).get("test", {}).items():
                ece = " | ".join(f"{values[f'ece_{region}']:.4f}" for region in REGIONS)
                scores = f"{values['dsc']:.4f} | {values['hd95_mm']:.2f}"
                lines.append(f"| {about} | {how} | {scores} | {ece} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", nargs=2, metavar=("NAME", "SPEC"), help=argparse.SUPPRESS)
    parser.add_argument("--raw", type=Path, nargs="+", default=[], help="raw nnU-Net data sets")
    parser.add_argument("--work", type=Path, help="folder of data, runs and predictions")
    parser.add_argument("--budgets", type=int, nargs="+", default=[120, 300], help="seconds")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["default"])
    parser.add_argument("--calibrators", nargs="*", default=["temperature", "auto"])
    parser.add_argument("--mode", choices=["sequential", "shared"], default="sequential")
    parser.add_argument("--patient", help="regular expression of the patient in a case name")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--warmup", type=float, default=30, help="seconds of nnU-Net's warm-up")
    parser.add_argument("--iterations", type=int, default=250, help="of an epoch of nnU-Net")
    parser.add_argument("--snapshots", type=int, default=9, help="for nnU-Net's validation curve")
    parser.add_argument("--speed", action="store_true", help="measure steps per second as well")
    parser.add_argument("--speed-epochs", type=int, default=6)
    late = "start nothing that would end later than S seconds after the start"
    parser.add_argument("--deadline", type=float, default=float("inf"), metavar="S", help=late)
    parser.add_argument("--reserve", type=float, default=60, help="seconds to predict and evaluate")
    parser.add_argument("--segcal-set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--results", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.stage:
        STAGES[args.stage[0]](json.loads(Path(args.stage[1]).read_text()))
        return
    args.segcal_set = [part for pair in args.segcal_set for part in ("--set", pair)]
    start = time.time()
    file = args.results or RESULTS / f"nnunet_{args.device}.json"
    benchmarks = {raw.name: Benchmark(raw, args) for raw in args.raw}

    def left() -> float:
        return float(args.deadline - (time.time() - start))

    def save(what: str) -> None:
        print(f"{time.time() - start:.0f} s: {what}", flush=True)
        results = {name: one.results() for name, one in benchmarks.items()}
        given = {key: str(value) for key, value in vars(args).items()}
        payload = {"environment": environment(), "arguments": given, "results": results}
        write_results(file, payload)
        file.with_suffix(".md").write_text(table(results) + "\n")

    runs = [(p, method, budget) for budget in args.budgets for method in args.methods
            for p in PROGRAMS]  # fmt: skip
    for name, one in benchmarks.items():
        one.prepare()
        save(f"{name} prepared")
        for budget in args.budgets:
            for method in args.methods:
                one.warm_up(method)
                turns = 1 if args.mode == "shared" else 2
                if left() < turns * budget * PATIENCE + args.reserve:
                    print(f"{name} {method} {budget} s: not started, too little time", flush=True)
                    continue
                one.train(method, budget)
                save(f"{name} {method}: trained for {budget} s")
        if args.speed and left() > args.reserve + 60:
            one.speed(args.methods[0])
            save(f"{name}: speed measured")
    for name, one in benchmarks.items():
        one.finish(runs, "predict", "predicted_test.json")
        save(f"{name} predicted")
        one.finish(runs, "evaluate", "evaluation.json")
        save(f"{name} evaluated")
    print("\n" + file.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
