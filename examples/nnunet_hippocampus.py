"""nnU-Net with a calibrated loss, from raw data to calibrated probabilities, in minutes on a CPU.

    python examples/nnunet_hippocampus.py DATA OUT [--cases 24] [--test 6] [--regions]

DATA is the Hippocampus task of the Medical Segmentation Decathlon (`imagesTr`, `labelsTr`), OUT a
new folder for all files. Needs the extra `nnunet` (docs/get-started/install.md). Every command is
printed.

With --regions nnU-Net trains overlapping regions, the whole hippocampus and its posterior part.

The training is far too short for a good network; the example shows the steps.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

DATASET = "Dataset004_Hippocampus"
TRAINER = "nnUNetTrainerNACLShort"
CONFIGURATION = "2d"  # 3-D convolutions are slow on a CPU
FOLDS = ("0", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=int, default=24, help="for training and cross-validation")
    parser.add_argument("--test", type=int, default=6, help="to predict, audit and calibrate")
    parser.add_argument("--regions", action="store_true", help="overlapping regions")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out} exists already")
    folders = {
        name: (options.out / name).resolve()
        for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
    }
    take_subset(options.data, folders["nnUNet_raw"] / DATASET, options.cases, options.test)
    if options.regions:
        declare_regions(folders["nnUNet_raw"] / DATASET / "dataset.json")
        os.environ["SEGCAL_NNUNET_OPTIONS"] = "constrain=softmax"

    # nnU-Net searches these folders for trainers: segcal's, and the short one of this example.
    trainers = output_of("segcal", "nnunet", "trainers").strip()
    example = Path(__file__).resolve().parent / "nnunet_trainers"
    os.environ |= {name: str(folder) for name, folder in folders.items()}
    os.environ |= {"nnUNet_extTrainer": os.pathsep.join([trainers, str(example)])}
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1"}  # for a small CPU

    run("nnUNetv2_plan_and_preprocess", "-d", "4", "-c", CONFIGURATION, "-np", "1")
    shrink(folders["nnUNet_preprocessed"] / DATASET / "nnUNetPlans.json")
    for fold in FOLDS:
        run("nnUNetv2_train", "4", CONFIGURATION, fold, "-tr", TRAINER, "-device", "cpu", "--npz")

    results = folders["nnUNet_results"] / DATASET / f"{TRAINER}__nnUNetPlans__{CONFIGURATION}"
    raw = folders["nnUNet_raw"] / DATASET
    predicted = [options.out / f"predicted_fold_{fold}" for fold in FOLDS]
    for fold, folder in zip(FOLDS, predicted, strict=True):
        run(
            *("nnUNetv2_predict", "-i", raw / "imagesTs", "-o", folder, "-d", "4"),
            *("-c", CONFIGURATION, "-tr", TRAINER, "-f", fold, "-device", "cpu"),
            *("-npp", "1", "-nps", "1", "--save_probabilities"),
        )
    calibrated = options.out / "calibrated"
    run(
        *("segcal", "nnunet", "calibrate", results, "--out", calibrated, "--average", "probs"),
        *(part for folder in predicted for part in ("--predictions", folder)),
    )
    run(
        *("segcal", "audit", "--probs", f"fold_0={predicted[0]}"),
        *("--probs", f"calibrated={calibrated}", "--labels", raw / "labelsTs"),
        *("--out", options.out / "audit"),
    )


def take_subset(data: Path, raw: Path, cases: int, test: int) -> None:
    """Link the first cases as nnU-Net expects them: names ending in _0000, and a dataset.json."""
    images = sorted((data / "imagesTr").glob("hippocampus_*.nii.gz"))
    if len(images) < cases + test:
        sys.exit(f"{data}: expected {cases + test} images in imagesTr, but found {len(images)}")
    for number, image in enumerate(images[: cases + test]):
        part = "Tr" if number < cases else "Ts"
        name = image.name.removesuffix(".nii.gz")
        link(image, raw / f"images{part}" / f"{name}_0000.nii.gz")
        link(data / "labelsTr" / image.name, raw / f"labels{part}" / image.name)
    description = {
        "channel_names": {"0": "MRI"},
        "labels": {"background": 0, "anterior": 1, "posterior": 2},
        "numTraining": cases,
        "file_ending": ".nii.gz",
    }
    (raw / "dataset.json").write_text(json.dumps(description, indent=2))


def declare_regions(path: Path) -> None:
    """Declare regions instead of classes; the order is that of the labels in label maps."""
    content = json.loads(path.read_text())
    content["labels"] = {"background": 0, "hippocampus": [1, 2], "posterior": 2}
    content["regions_class_order"] = [1, 2]
    path.write_text(json.dumps(content, indent=2))


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def shrink(plans: Path) -> None:
    """Set a small batch and a narrow network in nnU-Net's plans file."""
    content = json.loads(plans.read_text())
    chosen = content["configurations"][CONFIGURATION]
    chosen["batch_size"] = 12
    widths = chosen["architecture"]["arch_kwargs"]["features_per_stage"]
    chosen["architecture"]["arch_kwargs"]["features_per_stage"] = [w // 4 for w in widths]
    plans.write_text(json.dumps(content, indent=2))


def located(command: tuple[object, ...]) -> list[str]:
    """The command with its program from the environment of this Python."""
    program = Path(sys.executable).with_name(str(command[0]))
    return [str(program), *map(str, command[1:])]


def run(*command: object) -> None:
    print(f"\n$ {shlex.join(map(str, command))}", flush=True)
    if subprocess.run(located(command)).returncode != 0:
        sys.exit(f"failed: {shlex.join(map(str, command))}")


def output_of(*command: object) -> str:
    return subprocess.run(located(command), check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
