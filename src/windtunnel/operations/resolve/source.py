"""Digest of a Python file's code without comments and docstrings, and the modules it may import."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.records.files import read_own


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """digest: of the code alone. imports: dotted names; one may be a module's or that of something in a module.

    resources: whether it reads files that lie beside it.
    """

    digest: str
    imports: tuple[str, ...]
    resources: bool


def read_source(path: Path, name: str) -> ModuleSource:
    """Return the module `name` in `path`. Imports inside functions count, those for type checkers do not.

    Raises UserError where the file is no Python.
    """
    try:
        tree = ast.parse(read_own(path))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not Python ({error})") from error
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports = tuple(sorted(set(_imports(tree, package))))
    resources = any(isinstance(node, ast.Name) and node.id in {"__file__", "PackageLoader"} for node in ast.walk(tree))
    return ModuleSource(hashlib.sha256("".join(_shape(tree)).encode()).hexdigest(), imports, resources)


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for statement in node.orelse:
                yield from _imports(statement, package)
            return
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            parts = package.split(".")
            base = parts[: len(parts) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module != "__future__":
                yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            yield module
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, package)


def _shape(node: object) -> Iterator[str]:
    """Yield the tree without places, comments and docstrings; what is empty is left out, so that Python's versions agree."""
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from _shape(item)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field == "body" and isinstance(value, list) and _undecorated(node) and _has_docstring(value):
                value = value[1:]
            if value is not None and value != [] and field not in {"type_comment", "kind", "ctx"}:
                yield f" {field}="
                yield from _shape(value)
        yield ")"
    else:
        yield f"{type(node).__name__}:{node!r}"


def _undecorated(node: ast.AST) -> bool:
    """Return True if a docstring here is only documentation: a decorator may make it content, as that of a sanity check is."""
    return isinstance(node, ast.Module) or getattr(node, "decorator_list", None) == []


def _has_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
