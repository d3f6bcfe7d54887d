"""Data sets: preparation from image files, verification, splits, and batches for training.

- `AcdcSource`, …, `SOURCES`, `prepare`: write a prepared set
- `check_dataset`, `write_contact_sheet`: verify it, look at it
- `open_dataset`: its cases, splits, fingerprint
- `find_images`, `check_scan`, `read_scan`: scans for prediction, read like the data set
- `OriginalScans`, `place`: the cases of a prepared set, read again for another grid
- `training_space`: orientation and spacing of a data set
- `SliceDataset`, `PatchDataset`: torch datasets
- `make_loader`: batches, from memory if the data set fits

torch is imported only when one of the last three is used.
"""

from segcal.core.checks import require_app

require_app(__name__)

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports
from segcal.data.case import Case
from segcal.data.check import check_dataset, find_copies
from segcal.data.contact_sheet import write_contact_sheet
from segcal.data.dataset import PreparedCase, PreparedDataset, open_dataset
from segcal.data.formats import (
    Header,
    check_same_grid,
    files_of,
    find_label,
    nifti_name,
    read_header,
    read_image,
    read_labels,
    read_voxels,
    scan_name,
)
from segcal.data.formats.arrays import npz_headers, open_npy, read_npz
from segcal.data.formats.header import MAX_VOLUME_BYTES
from segcal.data.formats.nifti import write_nifti
from segcal.data.grid import IGNORED, Grid, GridRecipe, plan_grid
from segcal.data.inference_input import Scan, check_scan, find_images, read_scan, scan_grids
from segcal.data.info import DatasetInfo, Description
from segcal.data.intensity import Intensity
from segcal.data.orientation import (
    UNKNOWN,
    axis_codes,
    grid_orientation,
    reorient,
    training_space,
    turned_grid,
)
from segcal.data.original_scans import OriginalScans, check_fits, place, write_case
from segcal.data.preparation import prepare
from segcal.data.sources import SOURCES
from segcal.data.sources.acdc import AcdcSource
from segcal.data.sources.base import FileCase, Source, SourceCase
from segcal.data.sources.brats import BratsSource
from segcal.data.sources.dataset_json import read_dataset_json
from segcal.data.sources.flare import FlareSource
from segcal.data.sources.folder import FolderSource
from segcal.data.sources.msd import MsdSource
from segcal.data.sources.phantom import PhantomSource
from segcal.data.splits import Splits, make_splits
from segcal.data.summary import at_most
from segcal.data.verify import verify_cases

if TYPE_CHECKING:
    from segcal.data.loaders import Loader, ResidentLoader, StreamLoader, free_bytes, make_loader
    from segcal.data.torch_datasets import Batch, PatchDataset, SliceDataset

__all__ = [
    "IGNORED", "MAX_VOLUME_BYTES", "SOURCES", "UNKNOWN", "AcdcSource", "Batch", "BratsSource",
    "Case", "DatasetInfo", "Description", "FileCase", "FlareSource", "FolderSource", "Grid",
    "GridRecipe", "Header", "Intensity", "Loader", "MsdSource", "OriginalScans", "PatchDataset",
    "PhantomSource", "PreparedCase", "PreparedDataset", "ResidentLoader", "Scan", "SliceDataset",
    "Source", "SourceCase", "Splits", "StreamLoader", "at_most", "axis_codes",
    "check_dataset", "check_fits", "check_same_grid", "check_scan", "files_of", "find_copies",
    "find_images", "find_label", "free_bytes", "grid_orientation", "make_loader", "make_splits",
    "nifti_name", "npz_headers", "open_dataset", "open_npy", "place", "plan_grid", "prepare",
    "read_dataset_json", "read_header", "read_image", "read_labels", "read_npz", "read_scan",
    "read_voxels", "reorient", "scan_grids", "scan_name", "training_space", "turned_grid",
    "verify_cases", "write_case", "write_contact_sheet", "write_nifti",
]  # fmt: skip

_LOADERS = ("Loader", "ResidentLoader", "StreamLoader", "free_bytes", "make_loader")
_NEED_TORCH = dict.fromkeys(_LOADERS, "segcal.data.loaders") | dict.fromkeys(
    ("Batch", "PatchDataset", "SliceDataset"), "segcal.data.torch_datasets"
)
__getattr__, __dir__ = lazy_exports(__name__, _NEED_TORCH, __all__)
