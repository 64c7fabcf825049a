"""References to our own code as text, `module:name`, which neither mypy nor import-linter follows, all resolve."""

import ast
import importlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "windtunnel"
REFERENCE = re.compile(r"(windtunnel(?:\.\w+)+):(\w+)")


def references(path):
    """Return the references of a file, also those that begin with a constant of the module, as `f"{_HERE}:load"`."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else constants.get(getattr(part.value, "id", ""), "?")
                for part in node.values
            ]
            texts.add("".join(map(str, parts)))
    return {match.groups() for text in texts if (match := REFERENCE.fullmatch(text))}


FOUND = {path: found for path in sorted(PACKAGE.rglob("*.py")) if (found := references(path))}


def test_there_are_references():
    assert sum(map(len, FOUND.values())) > 40


@pytest.mark.parametrize("path", FOUND, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_reference_names_something(path):
    for module, name in FOUND[path]:
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"
