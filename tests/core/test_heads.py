"""Sigmoid heads: their description, and each as a problem of two classes."""

import numpy as np
import pytest
import torch

from segcal.core.heads import head_masks, inside_labels, paint, parse_heads, region_labels
from segcal.core.heads import two_classes as binary


@pytest.mark.parametrize("text", ["", "whole", "=1", "whole=", "whole=1+x", "a=1,a=2", "a=0+1"])
def test_invalid_heads_name_the_option(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--heads .*expected NAME=LABEL"):
        parse_heads(text)


def test_names_may_hold_spaces_and_signs() -> None:
    assert parse_heads("a = b=1+2, c d=3") == {"a = b": (1, 2), "c d": (3,)}


def test_two_classes_of_probabilities_and_logits() -> None:
    half = np.array([0.25, 1.0], np.float16)
    found = binary(half, from_probs=True)
    assert found.dtype == np.float32
    assert found.tolist() == [[0.75, 0.0], [0.25, 1.0]]
    logits = torch.tensor([2.0, -1.0], dtype=torch.bfloat16)
    assert binary(logits, from_probs=False).tolist() == [[0.0, 0.0], [2.0, -1.0]]


def test_ignored_voxels_stay_ignored() -> None:
    target = np.array([0, 1, 2, 3, 255], np.uint8)
    assert inside_labels(target, (2, 3), ignore_index=255).tolist() == [0, 0, 1, 1, 255]


def test_label_maps_show_nested_regions() -> None:
    heads = {"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)}  # as BraTS declares them
    assert region_labels(heads) == {"WT": 2, "TC": 1, "ET": 3}
    # Outside; edema; core; enhancing; core that the network does not call whole; exactly 0.5.
    probs = np.array(
        [[0.1, 0.2, 0.9, 0.9, 0.6, 0.5], [0, 0, 0.5, 0.8, 0, 0], [0.4, 0.9, 0.9, 0.9, 0.1, 0.5]]
    )
    order = {list(heads).index(name): label for name, label in region_labels(heads).items()}
    assert paint(head_masks(probs), order).tolist() == [0, 2, 1, 3, 1, 0]


def test_a_region_that_others_cover_keeps_its_smallest_label() -> None:
    assert region_labels({"all": (1, 2), "a": (1,), "b": (2,)}) == {"all": 1, "a": 1, "b": 2}
