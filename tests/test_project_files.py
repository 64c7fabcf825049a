"""The files that a project of this kind has: licence, changelog, citation, and one version in all of them."""

import ast
import importlib
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import windtunnel

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_same_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert windtunnel.__version__ == declared
    assert YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())["version"] == declared


def test_the_changelog_has_a_section_for_what_is_not_released():
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_one_that_pyproject_names():
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


@pytest.mark.slow
def test_what_benchmarks_and_examples_import_of_the_package_is_there():
    """The type checker does not read them, so a renamed module would be noticed by whoever runs them."""
    missing = []
    for path in sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("windtunnel"):
                continue
            module = importlib.import_module(node.module)
            missing += [
                f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
                for alias in node.names
                if not hasattr(module, alias.name) and not find_spec(f"{node.module}.{alias.name}")
            ]
    assert missing == []
