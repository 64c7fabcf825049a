"""Which class or function builds the module that a state dict fits: read from the source, nothing is imported."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from windtunnel.boundary.discovery.walk import read_or_skip
from windtunnel.boundary.files import read_bytes

_MODULES = {"Module", "LightningModule", "Sequential"}


def factories(root: Path, files: Iterable[Path], parts: frozenset[str]) -> list[str]:
    """Return `module:name` of callables without arguments that build a module with children named `parts`; classes first.

    `files` are relative to `root`, where Python starts looking; those below src/ are looked for there.
    """
    classes, functions = [], []
    for file in files:
        module = _module(file)
        tree = read_or_skip(file, lambda path: ast.parse(read_bytes(root / path))) if module else None
        if tree is None:
            continue
        fitting = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and _fits(node, parts)}
        classes += [f"{module}:{name}" for name in sorted(fitting)]
        functions += [f"{module}:{name}" for name in _builders(tree, fitting, parts)]
    return [*classes, *functions]


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" and len(parts) > 1 else parts
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


def _fits(node: ast.ClassDef, parts: frozenset[str]) -> bool:
    """Return True if a class of modules can be called without arguments and gives itself children of these names."""
    bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
    inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    layers = {
        target.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Assign | ast.AnnAssign)
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    callable_bare = not inits or _needs_nothing(inits[0], 1)
    return bool(bases & _MODULES) and callable_bare and bool(parts) and parts <= layers


def _builders(tree: ast.Module, fitting: set[str], parts: frozenset[str]) -> Iterator[str]:
    """Functions without arguments that return one of the `fitting` classes, or a Sequential where children are numbered."""
    class_names = fitting | ({"Sequential"} if parts and all(part.isdecimal() for part in parts) else set())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _needs_nothing(node, 0) and _returned(node) & class_names:
            yield node.name


def _needs_nothing(node: ast.FunctionDef, n_bound: int) -> bool:
    """Return True if a function can be called without arguments, `n_bound` aside (self)."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    return len(arguments) - len(node.args.defaults) <= n_bound and None not in node.args.kw_defaults


def _returned(node: ast.FunctionDef) -> set[str]:
    """Return the names that a function calls in its return statements."""
    calls = [
        item.value.func for item in ast.walk(node) if isinstance(item, ast.Return) and isinstance(item.value, ast.Call)
    ]
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
