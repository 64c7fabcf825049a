"""Find the code that a stage executes: modules reached by imports from its entry points, and their libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import windtunnel
from windtunnel.core.errors import UserError
from windtunnel.core.repository import code_folders
from windtunnel.operations.resolve.memory import Memory
from windtunnel.operations.resolve.source import ModuleSource, read_source

PACKAGE = "windtunnel"
SCHEDULING = f"{PACKAGE}.runtime"  # executors, progress, messages, shutdown: decides nothing of a result
STAGE_LOG = f"{SCHEDULING}.stage_log"  # reads results for its last line, so what it imports decides nothing either


@dataclass(frozen=True, slots=True)
class Closure:
    """code: digest of each module, and of each file that one of them reads beside itself, by its name.

    libraries: top-level names of what is imported from elsewhere, without the standard library.
    """

    code: dict[str, str] = field(default_factory=dict)
    libraries: frozenset[str] = frozenset()


class Code:
    """Code of this package, of the folder `project` and of its repository.

    `lazy`: what a module imports by a reference that no import statement names, or a library whose files it reads. What is
    found out about a module holds as long as this object does.
    """

    def __init__(self, project: Path, memory: Memory, lazy: Mapping[str, Iterable[str]] | None = None) -> None:
        self.memory = memory
        self._lazy = lazy or {}
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
            top, *rest = name.split(".")
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
            source = self._source(name, path)
            code = {name: source.digest}
            if source.resources:
                code |= {f"{name}: {rel}": self.memory.digest(file) for rel, file in _beside(path)}
            parts = name.split(".")
            around = (".".join(parts[:i]) for i in range(1, len(parts)))
            # A folder of modules without an __init__.py has no file of its own, and is no library.
            imported = (*source.imports, *self._lazy.get(name, ()))
            at_hand = {module.partition(".")[0] for module in imported if self.file(module) is not None}
            libraries = {module.partition(".")[0] for module in imported} - at_hand - sys.stdlib_module_names
            imports = tuple(module for module in (*around, *imported) if self.file(module) is not None)
            self._modules[name] = _Module(code, imports, frozenset(libraries))
        return self._modules[name]

    def _source(self, name: str, path: Path) -> ModuleSource:
        def read(path: Path) -> dict[str, object]:
            return asdict(read_source(path, name))

        source = self.memory.of(f"source {name}", path, read)
        return ModuleSource(str(source["digest"]), tuple(source["imports"]), bool(source["resources"]))  # type: ignore[arg-type]


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
