"""The code speaks plain technical English: four rates of the whole package, which may fall and never rise."""

import ast
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "windtunnel"
# Words that do not tell what a variable, parameter or attribute holds.
VAGUE = frozenset(
    re.findall(
        r"\w+",
        "found said asked known given some those left worth place made own one words seen wanted kept held here there told taken "
        "everyone nobody nothing everything whole met owed due news parcel crew shift desk hire",
    )
)
# First words of a docstring that begins with a relative clause in place of a verb or a noun.
RELATIVE = ("What ", "Whether ", "Of ", "Those ", "Where ", "As ", "Who ", "How ", "So ", "Nothing ", "Everything ")
# The most that each rate may be: shares of bound names and of docstrings, and counts.
MOST = {"vague names": 0.002, "relative docstrings": 0, "shared class names": 2, "fmt: skip": 10}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rates(sources):
    """Return the four rates of Python sources."""
    trees = [ast.parse(source) for source in sources]
    nodes = list(chain.from_iterable(map(ast.walk, trees)))
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names = stored + [node.arg for node in nodes if isinstance(node, ast.arg)]
    docstrings = [text for node in nodes if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))]
    classes = Counter(node.name.lstrip("_") for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        "vague names": sum(name.strip("_") in VAGUE for name in names) / max(1, len(names)),
        "relative docstrings": sum(text.startswith(RELATIVE) for text in docstrings) / max(1, len(docstrings)),
        "shared class names": sum(count for count in classes.values() if count > 1),
        "fmt: skip": sum(len(re.findall(r"# fmt: skip", source)) for source in sources),
    }


@pytest.fixture(scope="module")
def package():
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if "templates" not in path.parts]
    return rates([path.read_text() for path in files])


@pytest.mark.parametrize("rate", MOST)
def test_the_package_is_as_plain_as_it_was(package, rate):
    assert package[rate] <= MOST[rate], f"{rate}: {package[rate]:.4g}, at most {MOST[rate]:.4g}"


def test_each_offence_is_counted():
    plain = '"""Bound the margin."""\n\nlower = 1\n\n\nclass Bounds:\n    """Two bounds."""\n'
    assert set(rates([plain]).values()) == {0}
    offences = '"""What is found."""\n\n\ndef f(given):\n    found = given  # fmt: skip\n\n\nclass _Bounds:\n    pass\n'
    assert rates([plain, offences]) == {
        "vague names": 2 / 3,
        "relative docstrings": 1 / 3,
        "shared class names": 2,
        "fmt: skip": 1,
    }
