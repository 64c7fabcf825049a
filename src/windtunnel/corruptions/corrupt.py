"""One image under one corruption, the same bytes whatever runs beside it; and many of them, over processes."""

from __future__ import annotations

import multiprocessing as mp
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from PIL import Image

from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.corruptions.shims import shim_imagecorruptions

# ITU-R BT.601, as PIL's convert("L"): how a grey image comes back from RGB.
_LUMINANCE = np.array([0.299, 0.587, 0.114])
CHUNK = 16  # images a process is sent at a time: enough to outweigh the message, few enough for a smooth bar


@dataclass(frozen=True, slots=True)
class Job:
    """Images to corrupt: uint8 (n, H, W, C), C 1 or 3, with the id of each, which is all its randomness depends on."""

    corruption: str
    severity: int
    images: np.ndarray
    ids: tuple[str, ...]
    run_seed: int
    upsample: int | None


def image_seed(run_seed: int, sample: str, corruption: str, severity: int) -> int:
    """The seed of one image under one corruption: by its id, so that neither order nor batch matters."""
    return derive_seed(run_seed, "corruption", sample, corruption, severity)


def corrupt_image(image: np.ndarray, corruption: str, severity: int, seed: int) -> np.ndarray:
    """The library's corruption of one uint8 RGB image (H, W, 3), H and W at least 32; uint8 of the same shape."""
    shim_imagecorruptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, UserWarning, FutureWarning))
        import imagecorruptions
        from skimage.util import random_noise

        with seeded(seed):
            if corruption == "impulse_noise":
                # scikit-image's random_noise has a generator of its own, which no global seed reaches.
                amount = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
                noisy = random_noise(image / 255.0, mode="s&p", amount=amount, rng=np.random.default_rng(seed))
                return np.asarray(np.clip(noisy, 0, 1) * 255, dtype=np.uint8)
            return np.asarray(imagecorruptions.corrupt(image, severity=severity, corruption_name=corruption)).astype(
                np.uint8
            )


def run_job(job: Job) -> np.ndarray:
    """Corrupt every image of a job; uint8 of the same shape."""
    return np.stack(
        [
            _adapted(image, job, image_seed(job.run_seed, sample, job.corruption, job.severity))
            for image, sample in zip(job.images, job.ids, strict=True)
        ]
    )


def _adapted(image: np.ndarray, job: Job, seed: int) -> np.ndarray:
    """Grey through RGB and back by luminance; small images through a larger size and back, where asked."""
    height, width, channels = image.shape
    colour = image.repeat(3, axis=2) if channels == 1 else image
    if job.upsample:
        colour = _resized(colour, (job.upsample, job.upsample))
    found = corrupt_image(colour, job.corruption, job.severity, seed)
    if job.upsample:
        found = _resized(found, (width, height))
    if channels == 1:
        grey: np.ndarray = np.round(found @ _LUMINANCE).clip(0, 255).astype(np.uint8)[..., None]
        return grey
    return found


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[np.ndarray]:
    """The results of `jobs` in their order, over `workers` processes; a few at a time, so that memory stays bounded."""
    if workers == 1 or len(jobs) == 1:
        yield from map(run_job, jobs)
        return
    # spawn: forking a process that runs torch threads can hang.
    with ProcessPoolExecutor(workers, mp_context=mp.get_context("spawn")) as pool:
        todo = iter(jobs)
        pending = [pool.submit(run_job, job) for job in islice(todo, 4 * workers)]
        while pending:
            yield pending.pop(0).result()
            pending += [pool.submit(run_job, job) for job in islice(todo, 1)]
