"""Corrupt one image by imagecorruptions 1.1.2, with the same bytes in any process.

The library is unmaintained (its fixes of 2024 were never released); without the shims here it does not import, or crashes in
fog, glass_blur, gaussian_blur and defocus_blur.
"""

import functools
import importlib.util
import inspect
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

import numpy as np

from windtunnel.assessments.corruptions.rows import CorruptionRequest


@functools.cache
def shim_imagecorruptions() -> None:
    """Put back what imagecorruptions 1.1.2 uses. Call before its first import; harmless where nothing is missing; done once."""
    _float_alias()
    _gaussian_keyword()
    _import_without_pkg_resources()


def _import_without_pkg_resources() -> None:
    # setuptools 82 removed pkg_resources; the library uses it for one file name only.
    if "pkg_resources" in sys.modules or importlib.util.find_spec("pkg_resources") is not None:
        return

    def resource_filename(package: str, name: str) -> str:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        return str(Path(spec.origin).parent / name)

    module = types.ModuleType("pkg_resources")
    vars(module)["resource_filename"] = resource_filename
    sys.modules["pkg_resources"] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names of scipy that moved
            import_module("imagecorruptions")
    finally:
        # Others look whether pkg_resources is there, and expect all of it.
        del sys.modules["pkg_resources"]


def _float_alias() -> None:
    # numpy 2 removed np.float_; fog uses it.
    # By name, so that no linter "fixes" the old name here.
    vars(np).setdefault("float_", np.float64)


def _gaussian_keyword() -> None:
    # scikit-image 0.22 replaced gaussian(multichannel=True) by channel_axis=-1.
    import skimage.filters

    original = skimage.filters.gaussian
    if "multichannel" in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    def gaussian(*args: object, multichannel: bool | None = None, **kwargs: object) -> object:
        if multichannel is not None:
            kwargs["channel_axis"] = -1 if multichannel else None
        return original(*args, **kwargs)

    skimage.filters.gaussian = gaussian


def corrupt(request: CorruptionRequest) -> np.ndarray:
    """Corrupt the image of a request, RGB; numpy's global stream is left as it was."""
    with _global_stream_restored():
        return corrupt_image(request.image, request.corruption, request.severity, request.seed)


def corrupt_image(image: np.ndarray, corruption: str, severity: int, seed: int) -> np.ndarray:
    """Return the library's corruption of one uint8 RGB image (H, W, 3), H and W at least 32; uint8 of the same shape.

    Seeds numpy's global stream, and leaves it where the library does.
    """
    shim_imagecorruptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, UserWarning, FutureWarning))
        np.random.seed(seed)  # noqa: NPY002
        if corruption == "glass_blur":
            return glass_blur(image, severity)
        import imagecorruptions

        with _MENDED.get(corruption, _as_it_is)(seed):
            try:
                parts = _strips(image) if corruption in _POINTWISE else [image]
                return np.concatenate([imagecorruptions.corrupt(part, severity, corruption) for part in parts])
            except FloatingPointError:  # only where `_no_division_by_zero` asks for it
                return image.copy()


def _strips(image: np.ndarray) -> list[np.ndarray]:
    """Return an image in strips of about 48 rows (the library takes 32 or more), whose arrays fit the processor's cache."""
    return np.array_split(image, max(1, len(image) // 48))


@contextmanager
def _as_it_is(_: int) -> Iterator[None]:
    yield


@contextmanager
def _own_generator_seeded(seed: int) -> Iterator[None]:
    # scikit-image's random_noise makes a generator of its own, which no global seed reaches.
    util = import_module("skimage.util")
    with patch.object(util, "random_noise", functools.partial(util.random_noise, rng=seed)):
        yield


@contextmanager
def _no_division_by_zero(_: int) -> Iterator[None]:
    # On a small image it can happen that no drop falls; the library then divides 0 by 0 and blackens it.
    with np.errstate(invalid="raise"):
        yield


@contextmanager
def _textures_read_once(_: int) -> Iterator[None]:
    # The library decodes a photograph of frost for every image: most of what a suite takes at 32 px.
    cv2 = import_module("cv2")
    with patch.object(cv2, "imread", _remembering(cv2.imread)):
        yield


@functools.cache
def _remembering(read: Callable[[str], np.ndarray]) -> Callable[[str], np.ndarray]:
    return functools.cache(read)


@contextmanager
def _zoomed_by_channel(_: int) -> Iterator[None]:
    # The library interpolates over rows, columns and channels; the channels' weights are 1 and 0, and half of the work.
    module = import_module("imagecorruptions.corruptions")
    with patch.object(module, "scizoom", functools.partial(_by_channel, module.scizoom)):
        yield


def _by_channel(
    zoom: Callable[..., np.ndarray], image: np.ndarray, factors: tuple[float, float, int], order: int
) -> np.ndarray:
    channels = np.ascontiguousarray(image.transpose(2, 0, 1))
    return np.stack([zoom(channel, factors[:2], order=order) for channel in channels], axis=-1)


@contextmanager
def _motion_blurred_in_chunks(_: int) -> Iterator[None]:
    # The library copies the image for every step of the motion.
    module = import_module("imagecorruptions.corruptions")
    with patch.object(module, "_motion_blur", _motion_blur):
        yield


def _motion_blur(image: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Blur an image (H, W) or (H, W, 3) along a line, float64: the library's sums in its order, in chunks that fit the cache.

    Args:
        image: Pixels, whose border is repeated outside.
        radius: Half the length of the motion, pixels.
        sigma: Standard deviation of the weights along it, pixels.
        angle: Direction, degrees.
    """
    module = import_module("imagecorruptions.corruptions")
    height, width = image.shape[:2]
    length = module.getOptimalKernelWidth1D(radius, sigma)
    weights = module.getMotionBlurKernel(length, sigma)
    down, right = length * np.sin(np.deg2rad(angle)), length * np.cos(np.deg2rad(angle))
    steps = [
        tuple(-math.ceil(i * side / math.hypot(down, right) - 0.5) for side in (down, right)) for i in range(length)
    ]
    inside = takewhile(lambda step: abs(step[0]) < height and abs(step[1]) < width, steps)
    padded = np.pad(image.astype(np.float64), [(length, length), (length, length), (0, 0)][: image.ndim], mode="edge")
    # A step of the motion is an offset in the memory of the padded image, so that all arrays are contiguous.
    column, row = math.prod(image.shape[2:]), math.prod(padded.shape[1:])
    pixels, start = padded.ravel(), length * (row + column)
    offsets = [start - down * row - right * column for down, right in inside]
    blurred = np.zeros(height * row)
    end = len(blurred) - 2 * length * column
    for first in range(0, end, _CHUNK):
        total = blurred[first : min(first + _CHUNK, end)]
        product = np.empty_like(total)
        for weight, offset in zip(weights, offsets, strict=False):
            total += np.multiply(pixels[offset + first :][: len(total)], weight, out=product)
    return blurred.reshape(height, *padded.shape[1:])[:, :width]


@contextmanager
def _snow(seed: int) -> Iterator[None]:
    with _zoomed_by_channel(seed), _motion_blurred_in_chunks(seed):
        yield


_CHUNK = 2**15  # values
_POINTWISE = frozenset({"brightness", "saturate"})  # these draw nothing, and look at one pixel at a time
_MENDED = {
    "impulse_noise": _own_generator_seeded,
    "spatter": _no_division_by_zero,
    "frost": _textures_read_once,
    "motion_blur": _motion_blurred_in_chunks,
    "snow": _snow,
    "zoom_blur": _zoomed_by_channel,
}


@contextmanager
def _global_stream_restored() -> Iterator[None]:
    # As `core.seeds.seeded`, for the one stream the library draws from.
    state = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


# sigma of the blur, largest displacement in pixels, rounds of displacement; by severity.
_STRENGTH = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))


def glass_blur(image: np.ndarray, severity: int) -> np.ndarray:
    """Blur, displace pixels locally, blur; uint8 RGB (H, W, 3) in and out.

    Draws from numpy's global stream in the library's order. The library means to swap two pixels, but its operands are
    views, so that the second assignment reads what the first wrote: a pixel is overwritten by its neighbour, and
    published results are of that. Only where each pixel comes from is followed here, one integer a pixel.
    """
    sigma, reach, rounds = _STRENGTH[severity - 1]
    height, width, _ = image.shape
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    # One draw of many pairs takes the same numbers from the stream as many draws of one pair.
    steps = np.random.randint(-reach, reach, size=(rounds, len(rows), len(columns), 2))  # noqa: NPY002
    at = rows[:, None] * width + columns
    neighbours = at + steps[..., 1] * width + steps[..., 0]
    comes_from = list(range(height * width))
    for pixels in neighbours:
        # In order: a displaced pixel is displaced again with its neighbour.
        for target_pixel, source_pixel in zip(at.ravel().tolist(), pixels.ravel().tolist(), strict=True):
            comes_from[target_pixel] = comes_from[source_pixel]
    displaced = _blurred(image, sigma).astype(np.uint8).reshape(-1, 3)[comes_from].reshape(image.shape)
    return _blurred(displaced, sigma).clip(0, 255).astype(np.uint8)


def _blurred(image: np.ndarray, sigma: float) -> np.ndarray:
    from skimage.filters import gaussian

    blurred: np.ndarray = gaussian(image / 255.0, sigma=sigma, channel_axis=-1) * 255
    return blurred
