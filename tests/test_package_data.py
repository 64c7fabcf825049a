"""What is not Python and lies in the package is in the wheel too: in a checkout nobody would miss it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_file_of_the_package_is_data_that_the_wheel_takes():
    package = ROOT / "src" / "windtunnel"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["windtunnel"]
    taken = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert others <= taken
