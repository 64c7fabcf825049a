"""Whether a library is installed, and what to say of one that is not."""

from __future__ import annotations

import importlib.util


def is_installed(*modules: str) -> bool:
    """Whether all these modules can be found; none of them is imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def missing(where: str, library: str, distribution: str | None = None) -> str:
    """The one line for a library that is not installed. `distribution`: what pip installs where `windtunnel doctor` does not."""
    command = f"pip install {distribution}" if distribution else f"windtunnel doctor --install {library}"
    return f"{where}: {library} is not installed; `{command}` installs it"
