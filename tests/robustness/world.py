"""A small working example of every file that a command reads, made by the real writers."""

import contextlib
import io
import os
import traceback
from pathlib import Path

import numpy as np

FORMATS = ("nii.gz", "nrrd", "mha", "mhd", "dicom", "npy", "npz", "h5", "tif", "png folder")


def call(folder: Path, *arguments: str) -> tuple[str, str]:
    """How a command ended ("ok", "refused" or "failure"), and what it printed last."""
    import typer

    from segcal.cli import app

    printed, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            app(list(arguments), standalone_mode=False)
        return "ok", printed.getvalue()[-400:]
    except (typer.Exit, SystemExit) as stop:
        code = getattr(stop, "exit_code", getattr(stop, "code", 0))
        return ("refused" if code else "ok"), printed.getvalue()[-400:]
    except (ValueError, TypeError, OSError, ImportError) as error:  # printed as one line
        return "refused", f"{type(error).__name__}: {error}"
    except BaseException:
        return "failure", traceback.format_exc()
    finally:
        os.chdir(before)


def build(root: Path) -> None:
    """Prepared sets, runs with evaluations, a study, predictions, scans of every format, …"""
    from helpers.posthoc_samples import blobs, softmax
    from helpers.runs import phantom, settings
    from helpers.softmax_files import write_labels, write_nifti, write_prediction, write_predictions
    from helpers.studies import ACDC, METHODS, Recipe, make_study
    from segcal.config import to_yaml
    from segcal.data import PhantomSource, prepare

    phantom(root / "set", cases=8, slices=4, size=32)
    phantom(root / "other", cases=3, slices=4, size=32, seed=1)
    prepare(PhantomSource(cases=24, slices=4, size=32), root / "large", workers=1, folds=2)
    make_study(root / "study", Recipe(METHODS[:2], (ACDC,), cases=3, shape=(3, 24, 24)))
    write_labels(root / "labels", 3)
    write_predictions(root / "nnunet", "nnunet", 3)
    write_predictions(root / "nifti", "nifti", 3)
    write_predictions(root / "npy", "npy", 3)
    (root / "fit").mkdir()
    for number in range(100, 112):
        logits, labels = blobs(number)
        write_prediction(root / "fit", f"case_{number}", "nnunet", softmax(logits))
        write_nifti(root / "fit_labels" / f"case_{number}.nii.gz", labels)
    for form in FORMATS:
        write_scans(root / "scans" / form.replace(" ", "_"), form)
    (root / "plan.yaml").write_text(
        "datasets: {toy: {}}\nmethods: {ce: {loss: ce}, nacl: {loss: nacl}}\nmetrics: [dsc, ece]\n"
        "train: {epochs: 1, batch_size: 4, precision: '32',\n"
        "        model: {name: unet, options: {filters: [4, 8], pools: [2]}}}\n"
    )
    (root / "parts.csv").write_text("case,part\ncase0,train\ncase1,train\ncase2,val\ncase3,test\n")
    (root / "groups.csv").write_text("case,site\ncase0,a\ncase1,a\ncase2,b\ncase3,b\n")
    (root / "config.yaml").write_text(to_yaml(settings(Path("set"), epochs=2)))
    for line in (
        "train --config config.yaml --epochs 1 --out run",
        "train --config config.yaml --out run2",
        "train --config config.yaml --data large --epochs 1 --out held_out",
        "evaluate run",
        "calibrate --probs nnunet --labels labels --out cal.json",
        "assure fit --probs fit --labels fit_labels --out assurance.json",
        "predict run --input scans/nii.gz/images --out predicted --output labels",
    ):
        outcome, text = call(root, *line.split())
        assert outcome == "ok", (line, text)
        # A copy of the world is to use its own sets.
        for path in root.glob("*/config.yaml"):
            path.write_text(path.read_text().replace(f"{root}/", ""))


def write_scans(folder: Path, form: str) -> None:
    """Four scans with labels of one format, as `segcal prepare folder` reads them."""
    from helpers.image_files import write_as

    y, x = np.mgrid[:4, :24, :20][1:]
    for number in range(4):
        rng = np.random.default_rng(number)
        label = ((y - 12) ** 2 + (x - 10) ** 2 < (4 + number) ** 2).astype(np.uint8)
        image = (label * 80 + rng.integers(0, 60, label.shape)).astype(np.uint8)
        write_as(form, folder / "images" / f"case{number}", image, np.eye(4), "image")
        write_as(form, folder / "labels" / f"case{number}", label, np.eye(4), "label")
