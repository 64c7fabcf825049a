"""Public names of a module, as its stub (`.pyi`) lists them; each is imported when it is first asked for."""

import ast
import sys
from pathlib import Path

from windtunnel.core.references import load_object
from windtunnel.records.files import read_own


def listed_names(module: str) -> dict[str, str]:
    """Return the names that the stub of `module` imports, each with the module that defines it."""
    tree = ast.parse(read_own(Path(str(sys.modules[module].__file__)).with_suffix(".pyi")))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def imported(module: str, name: str, names: dict[str, str]) -> object:
    """Return the object that `module` lists as `name`. Raises AttributeError for a name that it does not list."""
    if name not in names:
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    value: object = load_object(f"{names[name]}:{name}")
    return value
