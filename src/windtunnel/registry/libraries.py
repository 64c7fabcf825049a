"""Find out whether a library is installed, and word the message where it is not."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Install:
    """Instructions for `windtunnel doctor --install` of one library.

    requirement: what pip is asked for, with a marker where it has no wheels everywhere. enables: what works with it. alone: why
    its own dependencies must stay out; empty where pip may resolve it. beside: what its code imports all the same, and our own
    dependencies do not bring. asked: installed only where it is named. of_torch: is, or stands on, torchvision, which is built
    for one torch.
    """

    requirement: str
    enables: str
    alone: str = ""
    beside: tuple[str, ...] = ()
    asked: bool = False
    of_torch: bool = False


def is_installed(*modules: str) -> bool:
    """Return True if all these modules can be found; none of them is imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def missing(where: str, library: str, distribution: str | None = None) -> str:
    """The one line for a library that is not installed. `distribution`: what pip installs where `windtunnel doctor` does not."""
    command = f"pip install {distribution}" if distribution else f"windtunnel doctor --install {library}"
    return f"{where}: {library} is not installed; `{command}` installs it"
