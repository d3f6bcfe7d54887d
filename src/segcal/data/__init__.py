"""From a downloaded challenge to verified, split, fast cases.

    plan_source, plan_phantom, prepare    make a prepared set
    check_dataset, contact_sheet          verify it, look at it
    open_dataset                          its cases, splits, fingerprint
    find_images, judge_raw, read_raw      raw images, for prediction, as the set's own were read
    training_space                        where a set's axes point, and its spacing
    SliceDataset, PatchDataset            torch datasets over them
    make_loader                           batches, from memory when the set fits

torch is imported only when one of the last three is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from segcal.data.case import Case, CaseProperties
from segcal.data.check import CheckReport, check_dataset
from segcal.data.contact_sheet import contact_sheet
from segcal.data.dataset import DatasetInfo, PreparedCase, PreparedDataset, open_dataset
from segcal.data.formats.nifti import (
    MAX_VOLUME_BYTES,
    Header,
    check_same_grid,
    read_header,
    read_image,
    read_labels,
    read_voxels,
    write_nifti,
)
from segcal.data.grid import Grid, GridRecipe
from segcal.data.inference_input import RawScan, find_images, judge_raw, place_raw, read_raw
from segcal.data.intensity import Intensity
from segcal.data.orientation import TrainingSpace, training_space
from segcal.data.phantom import PhantomSpec
from segcal.data.preparation import PrepareReport, prepare
from segcal.data.prepare_plan import SOURCES, Plan, plan_phantom, plan_source
from segcal.data.sources.base import SourceOptions
from segcal.data.splits import Splits, make_splits

if TYPE_CHECKING:
    from segcal.data.loaders import Loader, ResidentLoader, StreamLoader, make_loader
    from segcal.data.torch_datasets import Batch, PatchDataset, SliceDataset

_NEED_TORCH = {
    "Batch": "torch_datasets",
    "Loader": "loaders",
    "PatchDataset": "torch_datasets",
    "ResidentLoader": "loaders",
    "SliceDataset": "torch_datasets",
    "StreamLoader": "loaders",
    "make_loader": "loaders",
}

__all__ = [
    "MAX_VOLUME_BYTES",
    "SOURCES",
    "Batch",
    "Case",
    "CaseProperties",
    "CheckReport",
    "DatasetInfo",
    "Grid",
    "GridRecipe",
    "Header",
    "Intensity",
    "Loader",
    "PatchDataset",
    "PhantomSpec",
    "Plan",
    "PrepareReport",
    "PreparedCase",
    "PreparedDataset",
    "RawScan",
    "ResidentLoader",
    "SliceDataset",
    "SourceOptions",
    "Splits",
    "StreamLoader",
    "TrainingSpace",
    "check_dataset",
    "check_same_grid",
    "contact_sheet",
    "find_images",
    "judge_raw",
    "make_loader",
    "make_splits",
    "open_dataset",
    "place_raw",
    "plan_phantom",
    "plan_source",
    "prepare",
    "read_header",
    "read_image",
    "read_labels",
    "read_raw",
    "read_voxels",
    "training_space",
    "write_nifti",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"segcal.data.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'segcal.data' has no attribute {name!r}")
