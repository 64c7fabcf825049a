"""The files that a project of this kind has: licence, changelog, citation, and one version in all of them."""

import tomllib
from pathlib import Path

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
