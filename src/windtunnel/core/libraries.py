"""The libraries that run algorithms or bring models, and how to get one that is not installed."""

from __future__ import annotations

import importlib.util

from windtunnel.core.errors import IncompatibleError

# library: (the module it is imported as, how to install it). --no-deps: requirements-nodeps.lock says why.
_HOW = {
    "torchattacks": ("torchattacks", "pip install --no-deps torchattacks==3.5.1"),
    "foolbox": ("foolbox", "pip install 'foolbox>=3.3.4'"),
    "auto-LiRPA": ("auto_LiRPA", "pip install --no-deps auto-LiRPA==0.3"),
    "Marabou": ("maraboupy", "pip install maraboupy (wheels for Python 3.11 at most), or leave out marabou"),
    "imagecorruptions": ("imagecorruptions", "pip install imagecorruptions"),
    "onnx2torch": ("onnx2torch", "pip install --no-deps onnx2torch==1.5.15"),
    "torchvision": ("torchvision", "pip install 'windtunnel[torchvision]'"),
    "timm": ("timm", "pip install 'windtunnel[timm]'"),
    "huggingface": ("transformers", "pip install 'windtunnel[huggingface]'"),
}


def require_library(where: str, library: str) -> None:
    """Raise IncompatibleError, with the command that installs it, where `library` is not installed; ours always is."""
    if not is_installed(library):
        raise IncompatibleError(f"{where}: {library} is not installed: {how_to_install(library)}")


def how_to_install(library: str) -> str:
    """The command that installs a library of our list."""
    return _HOW[library][1]


def is_installed(library: str) -> bool:
    """Whether a library can be imported; one that is not of our list is somebody else's business."""
    return library not in _HOW or importlib.util.find_spec(_HOW[library][0]) is not None
