"""The libraries that models come from, where they are installed; torchvision also beside a CPU build of torch."""

from importlib.util import find_spec

import pytest
import torch

_OPERATORS = [
    "_deform_conv2d_backward", "_ps_roi_align_backward", "_ps_roi_pool_backward", "_roi_align_backward", "_roi_pool_backward",
    "deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "qnms", "qroi_align", "roi_align", "roi_pool",
]  # fmt: skip
_KEPT = []


def need(*modules: str) -> None:
    """Skip unless all of `modules` are installed, and make torchvision importable.

    PyPI's torchvision is built for the CUDA build of its torch; beside another one its native operators do not load, and
    its import fails at the first that it registers for. No classifier has one, so their names suffice.
    """
    if absent := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(absent)}: not installed")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor a) -> Tensor")
        _KEPT.append(library)
