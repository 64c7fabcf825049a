"""Images under one corruption, by the adapter of its library; what comes from outside is checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from windtunnel.assessments.corruptions.rows import CorruptionRequest, CorruptionRow
from windtunnel.boundary.arrays import checked_corruption
from windtunnel.boundary.limits import bounded
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.params.corruptions import FUNCTION, CorruptionEntry
from windtunnel.registry.plugins import Library, library_of

# ITU-R BT.601, as PIL's convert("L"): how a grey image comes back from RGB.
_LUMINANCE = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class Job:
    """Images to corrupt: uint8 (n, H, W, C), C 1 or 3, with the seed of each, which is all its randomness depends on.

    samples, class_names: id and class of each image. prepared: what `prepare` did to the samples.
    """

    row: CorruptionRow
    severity: int
    images: np.ndarray
    seeds: tuple[int, ...]
    entry: CorruptionEntry
    samples: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    prepared: Mapping[str, Json] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The corruption and its severity, for messages."""
        return f"{self.entry.library} {self.row.algorithm.name} at severity {self.severity}"


def run_job(job: Job) -> np.ndarray:
    """Corrupt every image of a job; uint8 of the same shape. Raises UserError where the library fails on one."""
    library = library_of(job.entry.library, "corruptions")
    assert library.adapter is not None  # preflight refuses a library without one
    corrupt = library.adapter()
    if is_foreign(library):
        seconds = job.entry.time_limit * len(job.images)
        with bounded(job.what, seconds, "time_limit of the entry"):
            return _corrupted(
                job, lambda request: checked_corruption(corrupt, request, request.image, request.seed, job.what)
            )
    try:
        return _corrupted(job, corrupt)
    except UserError:
        raise
    except Exception as error:  # whatever the unmaintained library raises
        raise UserError(f"{job.what} failed: {type(error).__name__}: {error}") from error


def is_foreign(library: Library) -> bool:
    """Return True if code of the user's or of a plug-in corrupts, whose images are checked and whose time is limited."""
    ours = library.adapter is not None and library.adapter.module.startswith("windtunnel.")
    return library.name == FUNCTION or not ours


def _corrupted(job: Job, corrupt: Callable[[CorruptionRequest], np.ndarray]) -> np.ndarray:
    n = len(job.images)
    samples, class_names = job.samples or ("",) * n, job.class_names or ("",) * n
    return np.stack(
        [_adapted(corrupt, job, *each) for each in zip(job.images, job.seeds, samples, class_names, strict=True)]
    )


def _adapted(
    corrupt: Callable[[CorruptionRequest], np.ndarray], job: Job, image: np.ndarray, seed: int, sample: str, name: str
) -> np.ndarray:
    """Convert grey images to RGB and back by luminance, and small images to a larger size and back if set."""
    height, width, channels = image.shape
    through_colour = channels == 1 and job.row.needs_colour
    pixels = image.repeat(3, axis=2) if through_colour else image.copy()
    if side := job.entry.upsample:
        pixels = _resized(pixels, (side, side))
    corrupted = corrupt(
        CorruptionRequest(job.row.algorithm.name, pixels, job.severity, seed, job.entry, sample, name, job.prepared)
    )
    if job.entry.upsample:
        corrupted = _resized(corrupted, (width, height))
    if through_colour:
        grey: np.ndarray = np.round(corrupted @ _LUMINANCE).clip(0, 255).astype(np.uint8)[..., None]
        return grey
    return corrupted


def there_and_back(images: np.ndarray, side: int) -> np.ndarray:
    """uint8 images (n, H, W, C) resized to `side` and back: what upsampling does to them without any corruption."""
    height, width = images.shape[1:3]
    return np.stack([_resized(_resized(image, (side, side)), (width, height)) for image in images])


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize uint8 (H, W, C) to (width, height)."""
    grey = image.shape[2] == 1
    resized = np.asarray(Image.fromarray(image[..., 0] if grey else image).resize(size, Image.Resampling.BILINEAR))
    return resized[..., None] if grey else resized
