"""Find what builds the module of a state dict: an architecture of torchvision or timm, or code of the repository, which is only read."""

from __future__ import annotations

import ast
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.boundary.discovery.walk import read_or_skip
from windtunnel.boundary.files import read_bytes
from windtunnel.core.references import first_line

if TYPE_CHECKING:
    from torch import Tensor


_SECONDS = 20.0  # for each library
IMAGENET_CLASSES = 1000  # of the architectures as they are built
_LEAST_OF_SIZE, _MOST_OF_SIZE = 0.4, 1.3  # a head of 1,000 classes is up to 0.6 of a small network
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of a library. classes: rows of the head, where they are not those of ImageNet."""

    source: str
    name: str
    classes: int | None = None


def fitting_architecture(state: Mapping[str, Tensor], hints: str) -> tuple[Architecture | None, tuple[str, ...]]:
    """Find the architecture whose names and shapes are those of `state`.

    Names that stand in `hints`, as the file's name, are tried first.

    Returns:
        The architecture, None where no installed library has one; and where it is None, what could not be tried, with the reason.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    size = sum(tensor.numel() for tensor in state.values())
    untried = []
    for source in ("torchvision", "timm"):
        if problem := _import_problem(source):
            untried.append(problem)
            continue
        names, build = _torchvision(size) if source == "torchvision" else _timm(shapes)
        deadline = time.monotonic() + _SECONDS
        for i, name in enumerate(sorted(names, key=lambda name: -_likeness(name, hints))):
            if time.monotonic() > deadline:
                untried.append(f"{len(names) - i} of {len(names)} architectures of {source} ({_SECONDS:g} s were over)")
                break
            head = _head(_shapes_of(build, name), shapes)
            if head is not None:
                return Architecture(source, name, head if head != IMAGENET_CLASSES else None), ()
    return None, tuple(untried)


def _import_problem(library: str) -> str:
    """Return why a library cannot be used; empty where it imports."""
    try:
        import_module(library)
    except Exception as error:  # torchvision raises RuntimeError beside another build of torch, and timm imports it
        absent = isinstance(error, ModuleNotFoundError) and error.name == library
        return f"{library} ({'not installed' if absent else f'does not import: {first_line(error)}'})"
    return ""


def _likeness(name: str, hints: str) -> int:
    """Return the letters of an architecture's name where it stands in the hints, else 0."""
    short, text = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (name.partition(".")[0], hints))
    return len(short) if short in text else 0


def _head(expected: Shapes, actual: Shapes) -> int | None:
    """Return the classes of the actual state dict where it fits but for the number of classes; None where it does not."""
    if expected.keys() != actual.keys():
        return None
    others = [name for name, shape in expected.items() if shape != actual[name]]
    if not others:
        return IMAGENET_CLASSES
    rows = {actual[name][0] if actual[name] else 0 for name in others}
    resized = all(
        expected[name][:1] == (IMAGENET_CLASSES,) and expected[name][1:] == actual[name][1:] and actual[name]
        for name in others
    )
    return rows.pop() if resized and len(rows) == 1 else None


def _shapes_of(build: Callable[[str], Any], name: str) -> Shapes:
    """Return names and shapes of an architecture; empty where it cannot be built without arguments."""
    import torch

    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return {key: tuple(tensor.shape) for key, tensor in build(name).state_dict().items()}
    except Exception:  # whatever a library raises for an architecture that needs something else
        return {}


def _torchvision(size: int) -> tuple[list[str], Callable[[str], Any]]:
    """Return the architectures with `size` parameters without the head, the nearest first, and their builders."""
    from windtunnel.boundary.models.torchvision.adapter import architecture, classifiers, parameter_count

    counts = {name: parameter_count(name) for name in classifiers()}
    names = [name for name, count in counts.items() if _LEAST_OF_SIZE * count <= size <= _MOST_OF_SIZE * count]
    return sorted(names, key=lambda name: abs(counts[name] - size)), lambda name: architecture(name, {})


def _timm(shapes: Shapes) -> tuple[list[str], Callable[[str], Any]]:
    import timm

    rows = ((name, timm.get_pretrained_cfg(name, allow_unregistered=True)) for name in timm.list_models())
    # Short names are the common ones.
    names = [name for name, row in rows if row and _has(shapes, row.first_conv) and _has(shapes, row.classifier)]
    return sorted(names, key=len), lambda name: timm.create_model(name, pretrained=False)


def _has(shapes: Shapes, layers: object) -> bool:
    listed = layers if isinstance(layers, tuple | list) else [layers]
    return all(isinstance(layer, str) and f"{layer}.weight" in shapes for layer in listed)


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
