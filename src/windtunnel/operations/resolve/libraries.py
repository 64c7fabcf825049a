"""Public versions of the libraries that a closure names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from functools import cache

from windtunnel.core.errors import UserError
from windtunnel.core.libraries import MODULES, missing
from windtunnel.operations.resolve.facts import DISTRIBUTION, WITHOUT_SAY

_LIBRARY = {module: library for library, module in MODULES.items()}


def versions(names: Iterable[str], where: str) -> dict[str, str]:
    """Distribution and version for each top-level name, but for those without a say in results.

    A local build (`2.13.0+cpu`) is no other version: colleagues on other machines share results.
    Raises UserError, for the stage `where`, where one is not installed.
    """
    found = {}
    for name in sorted(set(names) - WITHOUT_SAY):
        distribution = DISTRIBUTION.get(name, name)
        version = _version(distribution) or _version(distribution := _distribution_of(name))
        if version is None and name in _LIBRARY:
            raise UserError(missing(where, _LIBRARY[name]))
        if version is None:
            raise UserError(f"{where}: needs '{name}', which is neither installed nor a module in this folder")
        found[distribution] = version
    return found


@cache
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _distribution_of(name: str) -> str:
    # Reads the metadata of everything installed, half a second: only for a name that is not its distribution's.
    return next(iter(_modules().get(name, [name])))


@cache
def _modules() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
