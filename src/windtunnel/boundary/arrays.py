"""Convert a caller's array-like to a plain numpy array, or refuse it in one line. The caller's data is never written to."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import psutil
import torch
from PIL.Image import Image
from torch import Tensor

from windtunnel.core import scratch
from windtunnel.core.errors import UserError, shown
from windtunnel.core.references import first_line, foreign_errors
from windtunnel.core.seeds import seeded

_NESTED = (list, tuple, deque, range)
_PALETTES = ("P", "PA")  # modes of pictures whose pixels are indices
_MAX_DEPTH = 16  # of nested lists and maps


def array_of(values: object, what: str, *, names: bool = False) -> np.ndarray:
    """Return an array-like as a numpy array of numbers or names, in native byte order and without negative strides.

    A small array is a copy, a large one a view that refuses to be written to.

    Args:
        values: a numpy array, a torch tensor, nested lists of numbers or tensors, or an object with `__array__` or a buffer.
        what: the argument's name, for the message.
        names: whether text is allowed in it.

    Returns:
        An array (n, ...) of kind b, u, i, f, or U for names. A bfloat16 tensor is float32.

    Raises:
        UserError: in one line, for a value that is no array (None, text, a generator, a mapping ...), and for arrays without plain
            numbers: sparse, quantized, nested and meta tensors, masked values, complex numbers, dates, objects.
    """
    # Lists of different lengths, and whatever an object's `__array__` raises.
    with foreign_errors(lambda e: f"{what}: is no array ({first_line(e)})"):
        array = _from_tensor(values, what) if isinstance(values, Tensor) else _from_array_like(values, what)
        if not array.ndim:
            raise UserError(f"{what}: {_described(values)} is a single value; an array (n, ...) is needed")
        return _owned(_plain_type(array, what, "buifU" if names else "buif"), what)


def checked_corruption(
    corrupt: Callable[[Any], object], request: object, image: np.ndarray, seed: int, what: str
) -> np.ndarray:
    """Call a corruption of the user's or of a plug-in; return `corrupt(request)` as an image like `image`.

    Global random streams are seeded with `seed` during the call, and restored.

    Args:
        corrupt: what is called; it runs inside `boundary.limits.bounded` of the caller's.
        request: its argument, which holds `image`.
        image: uint8 (H, W, C), the image before; it may be changed in place, and is nobody else's.
        seed: in [0, 2**32).
        what: corruption and severity, for the message.

    Raises:
        UserError: in one line, for anything but an array uint8 (H, W, C) of the shape of `image`.
    """
    shape = image.shape
    with seeded(seed):
        returned = corrupt(request)
    if returned is None:
        raise UserError(f"{what} returned None; it has to return the image, also where it changes it in place")
    array = array_of(returned, f"{what}: the image returned")
    if array.dtype != np.uint8:
        bad = "NaN or infinity in " if array.dtype.kind == "f" and not np.isfinite(array).all() else ""
        raise UserError(f"{what} returned {bad}{array.dtype}; uint8 with values 0 to 255 is needed")
    if array.shape != shape:
        sizes = ["x".join(map(str, size)) for size in (array.shape, shape)]
        raise UserError(
            f"{what} returned an image of shape {sizes[0]}; it was given {sizes[1]} (height, width, channels)"
        )
    return array


def plain_value(value: object, where: str, depth: int = 0) -> object:
    """Return a value of an entry with numbers of numpy, torch and fractions, and tuples, as params.yaml has them.

    Raises UserError for keys that are no text, and for nesting without end.
    """
    if depth > _MAX_DEPTH:
        raise UserError(f"{where}: is nested too deeply, or holds itself")
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise UserError(f"{where}: {shown(strange[0])} is no key; keys are text")
        return {str(key): plain_value(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, where, depth + 1) for item in value]
    is_scalar = isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0
    if is_scalar and not (isinstance(value, Tensor) and (value.device.type == "meta" or value.is_quantized)):
        return value.item()  # type: ignore[attr-defined]  # of the three kinds above
    try:
        return float(value) if isinstance(value, Fraction | Decimal) else value
    except (OverflowError, ValueError) as error:  # Decimal("sNaN")
        raise UserError(f"{where}: {shown(value)} is too large for a number") from error


def _from_tensor(tensor: Tensor, what: str) -> np.ndarray:
    for is_bad, kind, advice in (
        (tensor.is_nested, "a nested tensor", "torch.stack of samples of one shape makes an array"),
        (tensor.layout is not torch.strided, f"a sparse tensor ({tensor.layout})", ".to_dense() makes it an array"),
        (tensor.is_quantized, f"a quantized tensor ({tensor.dtype})", ".dequantize() makes it an array"),
        (
            tensor.device.type == "meta",
            "a tensor on device meta, which holds no numbers",
            "it has to be on the CPU or a GPU",
        ),
    ):
        if is_bad:
            raise UserError(f"{what}: is {kind}; {advice}")
    plain = tensor.detach().as_subclass(Tensor)
    _check_size(plain.shape, what)
    plain = plain.resolve_conj().resolve_neg().cpu()
    if plain.dtype.is_floating_point and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.float()  # bfloat16 and the like, which numpy does not have
    array: np.ndarray = plain.numpy()
    return array


def _from_array_like(values: object, what: str) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UserError(f"{what}: is a masked array with masked values; .filled(value) makes them numbers")
    is_array = isinstance(values, np.ndarray) or (hasattr(values, "__array__") and not isinstance(values, type))
    if isinstance(values, str | bytes | bytearray) or not (
        is_array or isinstance(values, _NESTED) or _is_buffer(values)
    ):
        hint = "; list(...) of it is an array" if isinstance(values, Iterator) else ""
        raise UserError(
            f"{what}: {_described(values)} is no array; a numpy array, a torch tensor or nested lists, (n, ...){hint}"
        )
    if isinstance(values, _NESTED):
        if any(isinstance(item, Image) and item.mode in _PALETTES for item in values):
            raise UserError(
                f"{what}: holds images of a palette, whose numbers are no colours; image.convert('RGB') has them"
            )
        values = [_from_tensor(item, what) if isinstance(item, Tensor) else item for item in values]
        if values and isinstance(values[0], np.ndarray):
            _check_size((len(values), *values[0].shape), what)
            return np.stack(values)
    return np.asarray(values)


def _is_buffer(values: object) -> bool:
    try:
        memoryview(values).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _plain_type(array: np.ndarray, what: str, kinds: str) -> np.ndarray:
    if array.dtype.kind == "O" and array.size < 2**24 and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.dtype.kind == "T":  # numpy's strings of variable length
        array = array.astype(str)
    if array.dtype.kind == "O":
        odd = next((item for item in array.flat if not isinstance(item, int | float)), array.flat[0])
        raise UserError(
            f"{what}: holds objects ({type(odd).__name__}), not numbers of one type; astype(float) makes them so"
        )
    if array.dtype.kind not in kinds:
        raise UserError(f"{what}: holds {array.dtype}, not real numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _owned(array: np.ndarray, what: str) -> np.ndarray:
    _check_size(array.shape, what)
    if array.nbytes < scratch.LARGE:
        return np.array(array, order="C", subok=False)
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def _check_size(shape: tuple[int, ...], what: str) -> None:
    """Raise UserError for an array of one repeated value that would need more memory than there is."""
    needed, free = 4 * float(np.prod([float(size) for size in shape])), psutil.virtual_memory().available
    if needed > max(free, scratch.LARGE):
        sizes = "x".join(map(str, shape[1:]))
        raise UserError(
            f"{what}: {shape[0]} samples of {sizes} need {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB of memory are free"
        )


def _described(values: object) -> str:
    if values is None or isinstance(values, str | bytes | bytearray | bool | int | float | np.generic):
        return f"{shown(values)} ({type(values).__name__})"
    return f"a value of type {type(values).__name__}"
