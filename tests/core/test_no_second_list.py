"""Families and libraries are listed by their records alone: who else names several of them in one module is named here."""

import ast
from pathlib import Path

from windtunnel.registry.plugins import families

SOURCE = Path(__file__).parents[2] / "src" / "windtunnel"
# Where families are named: their own folders, the schema of params.yaml, and checks that are about one or two of ours.
OF_THEIR_OWN = ("assessments", "params", "evaluation/sanity")
# What is offered under the names of families of ours: functions of the package and their arguments.
OFFERED = {"__init__.py", "operations/api/run.py"}
# A module may be about one family, or about one and another that it builds on. Three names are a list.
A_LIST = 3


def names_in(path: Path, names: set[str]) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }


def modules(*without: str):
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(without):
            yield name, path


def test_nothing_above_the_assessments_lists_families():
    names = {*families(), *(family.stage for family in families().values())}
    found = {name: names_in(path, names) for name, path in modules(*OF_THEIR_OWN) if name not in OFFERED}
    assert {name: words for name, words in found.items() if len(words) >= A_LIST} == {}


def test_of_the_assessments_only_their_own_folder_names_a_family():
    names = set(families())
    shared = {n: p for n, p in modules() if n.startswith("assessments/") and n.split("/")[1] not in names}
    assert {name: words for name, path in shared.items() if (words := names_in(path, names))} == {}
