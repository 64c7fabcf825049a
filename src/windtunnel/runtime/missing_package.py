"""A package that is not installed: one line that names it and the command that installs it."""

import re

from windtunnel.core.errors import UserError

# Modules of which the distribution has another name.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "psycopg2": "psycopg2-binary",
    "ruamel": "ruamel.yaml",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


def not_installed(module: str) -> UserError:
    """Return the one-line error for a module that is not installed; pip is given the extra of ours that brings it, or its name."""
    from importlib.metadata import PackageNotFoundError, requires

    top = module.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(top, top.replace("_", "-"))
    try:
        declared = requires("windtunnel") or []
    except PackageNotFoundError:  # it only lies on Python's path
        declared = []
    named = rf"(?i){re.escape(distribution)}(?![\w.-])"
    lines = [line for line in declared if re.match(named, line)]
    extra = re.search(r"extra == [\"'](\w+)", lines[0]) if lines else None
    requirement = f"windtunnel[{extra[1]}]" if extra else lines[0].partition(";")[0] if lines else distribution
    return UserError(f"{top} is not installed, which this needs; pip install '{requirement}' installs it")


def missing_package(error: BaseException) -> UserError | None:
    """Return the one-line error for an import that failed for want of a package; None for any other error, and a module of ours."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith("windtunnel"):
        return None
    return not_installed(error.name)
