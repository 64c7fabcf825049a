"""Array-likes of every kind through the one door of arrays: the same numbers in an array of our own, or one line."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from windtunnel.boundary.arrays import array_of
from windtunnel.core.errors import UserError

FUZZ = settings(
    max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
NUMBERS = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
)  # fmt: skip
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


@st.composite
def views(draw, dtypes=NUMBERS):
    """An array that may be reversed, strided, transposed, in columns, read-only or a subclass. NaN, infinity and no rows included."""
    array = draw(hnp.arrays(draw(dtypes), draw(SHAPES)))
    match draw(st.integers(0, 6)):
        case 0:
            array = array[::-1]
        case 1:
            array = array[::2, ...]
        case 2:
            array = array.T
        case 3:
            array = np.asfortranarray(array)
        case 4:
            array = np.broadcast_to(array[None], (2, *array.shape))
        case 5:
            array.flags.writeable = False
        case 6:
            array = np.ma.array(array, mask=False)
    return array


def require_own(found: np.ndarray, given: np.ndarray) -> None:
    assert type(found) is np.ndarray
    assert found.dtype.isnative
    assert all(stride >= 0 for stride in found.strides)
    assert not np.shares_memory(found, given)


@FUZZ
@given(views())
def test_an_array_of_numbers_keeps_its_values_and_the_callers_is_left_alone(array):
    before, flags = np.ma.getdata(array).tobytes(), str(array.flags)
    found = array_of(array, "x")
    require_own(found, np.ma.getdata(array))
    assert found.shape == array.shape
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, np.ma.getdata(array))
    found[...] = 1
    assert (np.ma.getdata(array).tobytes(), str(array.flags)) == (before, flags)


@FUZZ
@given(views(st.sampled_from([np.dtype("f4"), np.dtype("i8"), np.dtype("u1"), np.dtype("?")])), st.integers(0, 3))
def test_lists_tensors_and_buffers_of_the_same_numbers_are_the_same_array(array, kind):
    array = np.array(np.ma.getdata(array))
    given = [array.tolist, lambda: list(array), lambda: torch.from_numpy(array), lambda: memoryview(array)][kind]()
    if not array.size and kind < 2:
        return  # nested lists of nothing have no shape
    found = array_of(given, "x")
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    require_own(found, array)


@FUZZ
@given(views(), st.data())
def test_masked_values_are_refused_and_objects_that_are_no_numbers_too(array, data):
    array = np.ma.getdata(array)
    if not array.size:
        return
    mask = data.draw(hnp.arrays(bool, array.shape).filter(np.any))
    with pytest.raises(UserError, match=r"^x: is a masked array"):
        array_of(np.ma.array(array, mask=mask), "x")
    odd = array.astype(object)
    odd[(0,) * odd.ndim] = data.draw(st.sampled_from([None, "a", {}, 1j, b"x"]))
    before = copy.deepcopy(odd.tolist())
    with pytest.raises(UserError, match=r"^x: holds "):
        array_of(odd, "x")
    assert odd.tolist() == before or array.dtype.kind == "f"  # NaN is unlike itself


@FUZZ
@given(
    hnp.arrays(
        st.one_of(hnp.complex_number_dtypes(), hnp.datetime64_dtypes(), hnp.timedelta64_dtypes(), hnp.array_dtypes(),
                  hnp.byte_string_dtypes(), hnp.unicode_string_dtypes()), SHAPES,
    )
)  # fmt: skip
def test_other_types_are_refused_in_one_line_that_names_the_type(array):
    if array.dtype.kind in "buif":
        return
    with pytest.raises(UserError, match=r"^x: holds") as refused:
        array_of(array, "x")
    assert len(str(refused.value).splitlines()) == 1
    assert not array.dtype.isbuiltin or str(array.dtype) in str(refused.value)
