"""Time to read a random slice from a prepared set and from NIfTI; time of a resident epoch.

    python benchmarks/bench_data.py --source DIR/acdc/training

Without --source, NIfTI volumes of phantoms are written and used.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from _common import environment, time_median, write_results

from segcal.data import (
    AcdcSource,
    FolderSource,
    PreparedDataset,
    ResidentLoader,
    SliceDataset,
    StreamLoader,
    prepare,
)
from segcal.data.dataset import _open_cached
from segcal.data.phantom import PhantomSpec, make_case


def phantom_files(root: Path) -> Path:
    """A folder of NIfTI volumes of the size of ACDC."""
    spec = PhantomSpec(size=224, slices=10)
    for index in range(12):
        case = make_case(spec, index)
        for kind, array in (("images", case.image[0]), ("labels", case.label)):
            (root / kind).mkdir(parents=True, exist_ok=True)
            image = nib.Nifti1Image(array.T, np.array(case.grid.affine))
            nib.save(image, root / kind / f"{case.name}.nii.gz")
    return root


def readers(
    dataset: PreparedDataset, source: Path
) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """Functions that read an image slice and its label: open file, newly opened file, NIfTI."""
    rng = np.random.default_rng(0)
    cases = list(dataset)

    def pick() -> tuple[object, int]:
        case = cases[rng.integers(len(cases))]
        return case, int(rng.integers(case.grid.original_shape[0]))

    def prepared() -> object:
        case, z = pick()
        return case.image_slice(z), case.label_slice(z)

    def prepared_cold() -> object:
        _open_cached.cache_clear()
        return prepared()

    def nifti() -> object:
        case, z = pick()
        files = [source / file.name for file in case.properties.sources]
        return [np.asanyarray(nib.load(path).dataobj)[..., z] for path in files]

    return prepared, prepared_cold, nifti


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="an ACDC training folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    # One thread: the batches are small, and other work on the machine would delay a second one.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.source or phantom_files(Path(scratch) / "nifti")
        source = AcdcSource(folder) if options.source else FolderSource(folder)
        dataset = prepare(source, Path(scratch) / "out", dtype="uint8", workers=2).dataset
        rows = measure(dataset, folder, options.device)
    name = f"data_{torch.device(options.device).type}.json"
    path = options.results or Path(__file__).parent / "results" / name
    payload = {"environment": environment(), "set": dataset.info.name, "cases": len(dataset)} | rows
    write_results(path, payload)
    for key, value in rows.items():
        if isinstance(value, dict):
            spread = f"{value['q1_s'] * 1e3:.3f}–{value['q3_s'] * 1e3:.3f}"
            print(f"{key:34} {value['median_s'] * 1e3:10.3f} ms  ({spread})")
        else:
            print(f"{key:34} {value:10.4g}")


def measure(dataset: PreparedDataset, source: Path, device: str) -> dict[str, object]:
    prepared, cold, nifti = readers(dataset, source)
    warm_time = time_median(prepared, 2000, warmup=400)
    cold_time = time_median(cold, 500, warmup=20)
    nifti_time = time_median(nifti, 100, warmup=5)
    slices = SliceDataset(dataset, "train")
    build = time_median(lambda: ResidentLoader(slices, 16, device=device), 3)
    resident = ResidentLoader(slices, 16, device=device)
    stream = StreamLoader(slices, 16)

    def epoch(loader: object) -> Callable[[], None]:
        def run() -> None:
            for _ in loader:  # type: ignore[attr-defined]
                pass
            if device.startswith("cuda"):
                torch.cuda.synchronize()

        return run

    resident_time = time_median(epoch(resident), 10, warmup=2)
    return {
        "slice_prepared": warm_time,
        "slice_prepared_opening_the_file": cold_time,
        "slice_nifti": nifti_time,
        "speedup": nifti_time["median_s"] / warm_time["median_s"],
        "speedup_opening_the_file": nifti_time["median_s"] / cold_time["median_s"],
        "resident_load": build,
        "resident_epoch": resident_time,
        "resident_batches": len(resident),
        "resident_batch_ms": resident_time["median_s"] * 1e3 / len(resident),
        "stream_epoch": time_median(epoch(stream), 3, warmup=1),
    }


if __name__ == "__main__":
    main()
