"""One layer over numpy arrays and torch tensors."""

import numpy as np
import pytest
import torch

from segcal.core.arrays import check_array, is_tensor, most_probable, to_numpy


@pytest.mark.parametrize("widen", [True, False])
def test_half_precision_is_treated_alike_in_numpy_and_torch(widen: bool) -> None:
    values = np.array([0.5, 2.0], np.float16)
    expected = np.float32 if widen else np.float16
    for array in (values, torch.from_numpy(values)):
        assert to_numpy(array, widen_half=widen).dtype == expected
    assert to_numpy(torch.tensor([0.5]).bfloat16(), widen_half=widen).dtype == np.float32


def test_byte_order_is_native_and_gradients_are_detached() -> None:
    assert to_numpy(np.array([1.0], ">f8")).dtype.isnative
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_other_types_are_refused_by_name() -> None:
    assert not is_tensor([1.0])
    with pytest.raises(TypeError, match="`probs`"):
        check_array("probs", [1.0])


def test_every_half_precision_number_is_widened_exactly() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    for half in (every, finite, finite[::-1], finite.reshape(8, -1).T, finite[:0]):
        found = to_numpy(half)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, half.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(found), np.signbit(half))


def test_most_probable_is_argmax() -> None:
    rng = np.random.default_rng(0)
    probs = rng.integers(0, 4, (5, 6, 7)).astype(np.float32)  # with many ties
    np.testing.assert_array_equal(most_probable(probs), probs.argmax(0))
