"""The files that a project of this kind has: licence, changelog, citation, and one version in all of them."""

import ast
import importlib
import re
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


def test_the_commands_of_benchmarks_run_from_the_root():
    """`python benchmarks/x.py` would not find the modules beside it."""
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    texts = {path: path.read_text() for path in [*(ROOT / "docs").rglob("*.md"), *scripts]}
    named = {(path.name, name) for path, text in texts.items() for name in re.findall(r"-m benchmarks\.(\w+)", text)}
    modules = {path.stem for path in scripts}
    assert named
    assert {name for _, name in named} <= modules
    assert [path.name for path, text in texts.items() if "python benchmarks/" in text] == []
    imports = [
        (path.name, module) for path in scripts for module in re.findall(r"^(?:from|import) (\w+)", texts[path], re.M)
    ]
    assert [row for row in imports if row[1] in modules] == []
