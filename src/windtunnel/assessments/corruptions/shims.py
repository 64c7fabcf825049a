"""Shims that imagecorruptions 1.1.2 needs on current libraries; each applies only where it lacks a thing.

The library is unmaintained (its fixes of 2024 were never released); without these it does not import, or crashes in
fog, glass_blur, gaussian_blur and defocus_blur.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
import types
import warnings
from pathlib import Path

import numpy as np


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
            importlib.import_module("imagecorruptions")
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
