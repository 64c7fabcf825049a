"""The libraries that run algorithms or bring models, and what to say of one that is not installed."""

from __future__ import annotations

import importlib.util

from windtunnel.core.errors import IncompatibleError

# library: the module it is imported as. What each is for and how pip gets it is known to `windtunnel doctor`.
MODULES = {
    "torchattacks": "torchattacks",
    "foolbox": "foolbox",
    "auto-LiRPA": "auto_LiRPA",
    "Marabou": "maraboupy",
    "imagecorruptions": "imagecorruptions",
    "onnx2torch": "onnx2torch",
    "torchvision": "torchvision",
    "timm": "timm",
    "huggingface": "transformers",
}


def require_library(where: str, library: str) -> None:
    """Raise IncompatibleError, with the command that installs it, where `library` is not installed; ours always is."""
    if not is_installed(library):
        raise IncompatibleError(missing(where, library))


def missing(where: str, library: str) -> str:
    """The one line for a library that is not installed."""
    return f"{where}: {library} is not installed; `windtunnel doctor --install {library}` installs it"


def is_installed(library: str) -> bool:
    """Whether a library can be imported; one that is not of our list is somebody else's business."""
    return library not in MODULES or importlib.util.find_spec(MODULES[library]) is not None
