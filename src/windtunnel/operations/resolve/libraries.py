"""Public versions of the libraries that a closure names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from functools import cache

from windtunnel.core.errors import UserError
from windtunnel.operations.resolve.dependencies import DISTRIBUTION, WITHOUT_SAY
from windtunnel.registry.plugins import Library, families, libraries, missing, model_source, model_sources


def versions(names: Iterable[str], where: str) -> dict[str, str]:
    """Distribution and version for each top-level name, but for those without a say in results.

    A local build (`2.13.0+cpu`) is no other version: colleagues on other machines share results.
    Raises UserError, for the stage `where`, where one is not installed.
    """
    installed_versions = {}
    for name in sorted(set(names) - WITHOUT_SAY):
        distribution = DISTRIBUTION.get(name) or _packages().get(name, name)
        version = _version(distribution) or _version(distribution := _distribution_of(name))
        if version is None and (line := _missing(where, name)):
            raise UserError(line)
        if version is None:
            raise UserError(f"{where}: needs '{name}', which is neither installed nor a module in this folder")
        installed_versions[distribution] = version
    return installed_versions


def _recorded() -> Iterator[Library]:
    """Return the libraries of all families that are imported from elsewhere."""
    return (library for family in families() for library in libraries(family).values() if library.imports)


@cache
def _packages() -> dict[str, str]:
    """Return the distributions that the records name, by the module that each brings."""
    return {library.imports[0]: library.package for library in _recorded() if library.package}


def _missing(where: str, module: str) -> str | None:
    """Return the record's hint for a missing library; None for a module that is no record's."""
    of_libraries = (library.missing(where) for library in _recorded() if library.imports[0] == module)
    of_models = (missing(where, source) for source in model_sources() if module in model_source(source).imports)
    return next(of_libraries, None) or next(of_models, None)


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
