"""Find the code that a stage executes: modules reached by imports from its entry points, and their libraries.

What is read of a file, its digest without comments and docstrings and the modules it may import, is valid while its size and
its time are the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

import windtunnel
from windtunnel.core.errors import UserError
from windtunnel.core.references import code_folders
from windtunnel.records.files import file_digest, read_json, read_own, write_json

PACKAGE = "windtunnel"
SCHEDULING = f"{PACKAGE}.runtime"  # executors, progress, messages, shutdown: decides nothing of a result
STAGE_LOG = f"{SCHEDULING}.stage_log"  # reads results for its last line, so what it imports decides nothing either
MEMORY = Path(".cache/windtunnel/resolve.json")
# Raised where what is remembered changes its form or its meaning: the digest of a module, what counts as an import.
FORM = 2
# A file that is younger when it is read may change once more within the same tick of its file system's clock.
SETTLED = 2.0
Finding = TypeVar("Finding")


@dataclass(frozen=True, slots=True)
class Closure:
    """code: digest of each module, and of each file that one of them reads beside itself, by its name.

    libraries: top-level names of what is imported from elsewhere, without the standard library.
    """

    code: dict[str, str] = field(default_factory=dict)
    libraries: frozenset[str] = frozenset()


class Code:
    """Code of this package, of the folder `project` and of its repository.

    `lazy`: what a module imports by a reference that no import statement names, or a library whose files it reads. `left_out`:
    methods of the classes in a module that are not followed, since what they do is no part of a result. `module:method` is
    a module with this method of its classes alone, `module:` without methods. What is
    found out about a module holds as long as this object does.
    """

    def __init__(
        self,
        project: Path,
        memory: Memory,
        lazy: Mapping[str, Iterable[str]] | None = None,
        left_out: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self.memory = memory
        self._lazy, self._left_out = lazy or {}, left_out or {}
        self._folders = [str(folder) for folder in code_folders(project)]
        self._roots = {PACKAGE: os.path.dirname(windtunnel.__file__)}
        self._files: dict[str, Path | None] = {}
        self._modules: dict[str, _Module] = {}

    def closure(
        self, entry_points: Iterable[str], without: frozenset[str] = frozenset(), *, drawing: bool = False
    ) -> Closure:
        """Return all modules that `entry_points` import, also inside functions, and not by way of `without`.

        `without` holds modules that this use does not reach, such as the adapter of another library; an entry point is
        never one of them. Code that draws is left out unless `drawing`. Modules of `runtime` are left out, but what they import is
        followed. Raises UserError where an entry point is not there.
        """
        code: dict[str, str] = {}
        libraries: set[str] = set()
        todo, visited = list(entry_points), set()
        for name in todo:
            if self.file(name) is None and not self._adopt(name):
                raise UserError(
                    f"{name}: no such module in this folder, its repository, in {PACKAGE} or on Python's path"
                )
        while todo:
            name = todo.pop()
            if name in visited:
                continue
            visited.add(name)
            module = self._module(name)
            if not schedules(name):
                code |= module.code
                libraries |= module.libraries
            elif name == STAGE_LOG:
                continue
            todo += [
                imported for imported in module.imports if imported not in without and (drawing or not draws(imported))
            ]
        return Closure(dict(sorted(code.items())), frozenset(libraries))

    def file(self, name: str) -> Path | None:
        """Return the file of a module of ours or of the project; None for a library's and for a name that is no module's."""
        if name not in self._files:
            top, *rest = name.partition(":")[0].split(".")
            root = self._roots.get(top)
            tops = [root] if root else [os.path.join(folder, top) for folder in self._folders]
            bases = [os.path.join(base, *rest) for base in tops]
            paths = (path for base in bases for path in (os.path.join(base, "__init__.py"), f"{base}.py"))
            self._files[name] = next((Path(path) for path in paths if os.path.isfile(path)), None)
        return self._files[name]

    def _adopt(self, name: str) -> bool:
        """Take the package of an entry point for one at hand, wherever Python finds it; whether it has the module."""
        top = name.partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            return False
        self._roots[top] = next(iter(spec.submodule_search_locations))
        self._files = {module: file for module, file in self._files.items() if module.partition(".")[0] != top}
        return self.file(name) is not None

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            path = self.file(name)
            assert path is not None
            module_name, is_part, method = name.partition(":")
            retained = frozenset({method}) if is_part else None
            without = frozenset() if is_part else self._left_out.get(name, frozenset())
            what = f"source {name} {' '.join(sorted(without))}"
            source = self.memory.of(what, path, lambda path: read_source(path, module_name, retained, without))
            code = {name: source["digest"]}
            if source["resources"]:
                code |= {f"{name}: {rel}": self.memory.digest(file) for rel, file in _beside(path)}
            parts = module_name.split(".")
            around = (".".join(parts[:i]) for i in range(1, len(parts)))
            # A folder of modules without an __init__.py has no file of its own, and is no library.
            imported = (*source["imports"], *self._lazy.get(name, ()))
            at_hand = {module.partition(".")[0] for module in imported if self.file(module) is not None}
            libraries = {module.partition(".")[0] for module in imported} - at_hand - sys.stdlib_module_names
            imports = tuple(module for module in (*around, *imported) if self.file(module) is not None)
            self._modules[name] = _Module(code, imports, frozenset(libraries))
        return self._modules[name]


class _Module(NamedTuple):
    """code: the digest of its own and of what it reads beside itself. imports: modules at hand that it executes."""

    code: dict[str, str]
    imports: tuple[str, ...]
    libraries: frozenset[str]


def schedules(module: str) -> bool:
    """Return True for a module that only decides where, when and with which messages work is done."""
    return module == SCHEDULING or module.startswith(f"{SCHEDULING}.")


def draws(module: str) -> bool:
    """Return True for a module that decides only how results look: by its name, `figures` or `<what>_figure`."""
    return any(part == "figures" or part.endswith("_figure") for part in module.split("."))


def _beside(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of the files below a module's folder that are no Python, such as templates and style sheets."""
    folder = path.parent
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix not in {".py", ".pyc"}:
            yield file.relative_to(folder).as_posix(), file


class ModuleSource(TypedDict):
    """digest: of the code alone. imports: dotted names; one may be a module's or that of something in a module.

    resources: whether it reads files that lie beside it.
    """

    digest: str
    imports: list[str]
    resources: bool


def read_source(
    path: Path, name: str, retained: frozenset[str] | None = None, without: frozenset[str] = frozenset()
) -> ModuleSource:
    """Return the module `name` in `path`. Imports inside functions count, those for type checkers do not.

    Of the methods of its classes, those in `without` are left out, or all but `retained`; what a method that stays calls by its
    name stays too. Raises UserError where the file is no Python.
    """
    try:
        tree = ast.parse(read_own(path))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not Python ({error})") from error
    if retained is not None or without:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                _drop_methods(node, retained, without)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports = sorted(set(_imports(tree, package)))
    shape = _shape(tree)
    resources = any(_shape(ast.Name(name)) in shape for name in ("__file__", "PackageLoader"))
    digest = hashlib.sha256(shape.encode()).hexdigest()
    return ModuleSource(digest=digest, imports=imports, resources=resources)


def _drop_methods(node: ast.ClassDef, retained: frozenset[str] | None, without: frozenset[str]) -> None:
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    todo, reached = [*(methods.keys() - without if retained is None else methods.keys() & retained)], set[str]()
    while todo:
        reached.add(name := todo.pop())
        called = {part.attr for part in ast.walk(methods[name]) if isinstance(part, ast.Attribute)}
        todo += (called & methods.keys()) - reached
    node.body = [part for part in node.body if getattr(part, "name", None) not in methods.keys() - reached]


# What a function imports of the family that is its last argument.
_BY_FAMILY = {
    "find_algorithm": "family:algorithms",
    **dict.fromkeys(("libraries", "library_of", "rows_of"), "libraries"),
}


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    todo = [tree]
    while todo:
        node = todo.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                todo += node.orelse
                continue
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
            case ast.Call(func=ast.Name(id=asks), args=[*_, ast.Constant(value=str(family))]) if asks in _BY_FAMILY:
                if package.startswith(PACKAGE):  # another function of the same name
                    yield f"{PACKAGE}.assessments.{family}.{_BY_FAMILY[asks]}"
        todo += ast.iter_child_nodes(node)


def _shape(node: object) -> str:
    """Return the tree without places, comments and docstrings; what is empty is left out, so that Python's versions agree."""
    if isinstance(node, list):
        return f"[{''.join(map(_shape, node))}]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!r}"
    parts = [f"({type(node).__name__}"]
    for name, value in ast.iter_fields(node):
        if name == "body" and _has_docstring(node):
            value = value[1:]
        if value is not None and value != [] and name not in {"type_comment", "kind", "ctx"}:
            parts.append(f" {name}={_shape(value)}")
    return f"{''.join(parts)})"


def _has_docstring(node: ast.AST) -> bool:
    """Return True for a docstring that is only documentation: a decorator may make it content, as that of a sanity check is."""
    match node:
        case (
            ast.Module()
            | ast.ClassDef(decorator_list=[])
            | ast.FunctionDef(decorator_list=[])
            | ast.AsyncFunctionDef(decorator_list=[])
        ):
            return ast.get_docstring(node, clean=False) is not None
    return False


class _MemoryFile(BaseModel):
    """The file. files: size, time, inode and finding, by what it is and of which file."""

    form: int
    files: dict[str, list[object]]


class Memory:
    """findings about files, kept between runs in `path`; a damaged or older file only costs time."""

    def __init__(self, path: Path = MEMORY) -> None:
        self._path = path
        self._known: dict[str, list[object]] = {}
        self._changed = False
        try:
            stored = _MemoryFile.model_validate(read_json(path))
        except (UserError, ValidationError):
            return
        if stored.form == FORM:
            self._known = stored.files

    def of(self, what: str, path: Path, find: Callable[[Path], Finding]) -> Finding:
        """Return the result of `find`, cached as `what`, for a file; a list, a text or a number. Raises OSError where it is missing."""
        key, facts = f"{what} {os.path.abspath(path)}", path.stat()
        mark = [facts.st_size, facts.st_mtime_ns, facts.st_ino]
        entry = self._known.get(key)
        if entry is not None and entry[:3] == mark:
            return entry[3]  # type: ignore[return-value]  # what `find` gave before, through JSON
        value = find(path)
        if time.time() - facts.st_mtime > SETTLED:
            self._known[key] = [*mark, value]
            self._changed = True
        return value

    def digest(self, path: Path) -> str:
        """sha256 of a file's bytes, or of the names and bytes of all files below a folder."""
        if not path.is_dir():
            return self.of("sha256", path, file_digest)
        return combined(
            {p.relative_to(path).as_posix(): self.digest(p) for p in sorted(path.rglob("*")) if p.is_file()}
        )

    def keep(self) -> None:
        """Write new findings for the next run."""
        if self._changed:
            write_json(_MemoryFile(form=FORM, files=self._known).model_dump(), self._path)


def combined(digests: dict[str, str]) -> str:
    """One digest of several under their names."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
