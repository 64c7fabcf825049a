"""What is not Python and lies in the package is in the wheel too: in a checkout nobody would miss it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_file_of_the_package_is_data_that_the_wheel_takes():
    package = ROOT / "src" / "windtunnel"
    taken = {path for pattern in SETUPTOOLS["package-data"]["windtunnel"] for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert others <= taken


def test_every_file_of_pipeline_that_users_copy_is_installed_under_share():
    """What serves only this repository's own CI (pipeline/ci) stays out; `init --ci` writes the users' files."""
    installed = {
        folder.removeprefix("share/windtunnel/"): {path for pattern in patterns for path in ROOT.glob(pattern)}
        for folder, patterns in SETUPTOOLS["data-files"].items()
    }
    own = {"__init__.py", ".env"}
    files = [
        path
        for path in (ROOT / "pipeline").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name not in own
    ]
    for path in files:
        if path.parent.name != "ci":
            assert path in installed.get(str(path.parent.relative_to(ROOT)), set()), path
