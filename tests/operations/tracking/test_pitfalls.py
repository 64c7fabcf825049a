"""docs/pitfalls.md names tests: they are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (P\d+) \|.*\| (.*) \|$", (TESTS.parent / "docs" / "pitfalls.md").read_text(), re.MULTILINE)


def test_every_pitfall_has_its_row():
    assert [number for number, _ in ROWS] == [f"P{i}" for i in range(1, 17)]


@pytest.mark.parametrize(("number", "cell"), ROWS)
def test_the_tests_of_a_pitfall_are_there(number, cell):
    file = ""
    for path, test in re.findall(r"`([^`:]*)::(\w+)`", cell):
        file = path or file
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), f"{number}: {file}::{test}"
    assert file
