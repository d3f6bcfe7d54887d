"""Softmax files of any origin: find, pair with labels, read and write.

find_softmax(folder)        every case of a folder: nnU-Net, .npz, .npy or NIfTI
find_pairs(folder, labels)  predictions with their labels, matched by name and checked
find_unlabeled(folder)      predictions without labels, with the position of their voxels
write_like(file, probs, …)  probabilities in the format of an existing file
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.predictions.pairing import (
    IGNORED,
    Axes,
    LoadedCase,
    Pair,
    Pairs,
    Unlabeled,
    check_same_place,
    class_names,
    find_pairs,
    find_unlabeled,
)
from segcal.predictions.softmax_files import (
    SoftmaxFile,
    check_one_map,
    find_softmax,
    name_file_in_errors,
)
from segcal.predictions.writer import (
    Form,
    check_not_existing,
    outputs_of,
    write_like,
    write_nifti_like,
    write_nnunet,
)

__all__ = [
    "IGNORED", "Axes", "Form", "LoadedCase", "Pair", "Pairs", "SoftmaxFile", "Unlabeled",
    "check_not_existing", "check_one_map", "check_same_place", "class_names", "find_pairs",
    "find_softmax", "find_unlabeled", "name_file_in_errors", "outputs_of", "write_like",
    "write_nifti_like", "write_nnunet",
]  # fmt: skip
