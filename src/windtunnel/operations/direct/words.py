"""From what one types in a notebook to entries of params.yaml: "pgd", "cascade", "fog", a function, or whole entries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from windtunnel.assessments.attacks.table import ROWS
from windtunnel.assessments.catalogue import algorithms
from windtunnel.core.contracts import Algorithm
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.numbers import parse_number

STEPS, REACH = 40, 2.5  # of an attack that is given by its name alone; how far they go in all, in epsilons

# One word, one function (attacks), entries by name as in params.yaml, or several words and functions.
Given: TypeAlias = "str | Callable[..., object] | Mapping[str, object] | Iterable[str | Callable[..., object]] | None"


def budget_block(budget: str | Mapping[str, object]) -> dict[str, object]:
    """`budget` of params.yaml from "Linf 8/255". Raises UserError for words that are no norm and epsilon."""
    if not isinstance(budget, str):
        return dict(budget)
    words = budget.split()
    if len(words) != 2:
        raise UserError(f'budget: \'{budget}\' is not a norm and an epsilon; write "Linf 8/255" or "L2 0.5"')
    return {"norm": words[0], "epsilon": words[1]}


def epsilon_of(block: Mapping[str, object]) -> float | None:
    """The epsilon of a budget, None where it is none: the schema says what is wrong with it."""
    try:
        return float(parse_number(str(block.get("epsilon"))))
    except ValueError:
        return None


def entries_of(family: str, given: Given, epsilon: float | None = None) -> dict[str, object]:
    """The map of a family in params.yaml. Raises UserError, with the nearest match, for an unknown algorithm.

    An attack of torchattacks that is given by its name alone takes 40 steps of epsilon / 16 (2.5 epsilon in all, as Madry et al.
    2018 do): the library's own steps are those of 8/255, and would not reach the end of a larger ball.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    several = [given] if isinstance(given, str) or callable(given) else list(given)
    return dict(entry_of(family, item, epsilon) for item in several)


def entry_of(family: str, item: str | Callable[..., object], epsilon: float | None) -> tuple[str, dict[str, object]]:
    """The name and the entry of one word or function; see `entries_of`."""
    if callable(item):
        name = getattr(item, "__name__", type(item).__name__)
        if getattr(sys.modules.get(item.__module__), name, None) is not item:
            raise UserError(
                f"{family}: {name} cannot be found again by its name; give a function of a module's top level"
            )
        return name, {"library": "function", "algorithm": f"{item.__module__}:{name}"}
    found = _algorithm(family, item)
    entry: dict[str, object] = {"library": found.library, "algorithm": found.name}
    if family == "attacks" and epsilon and _has_steps(found):
        entry["budget"] = {"steps": STEPS, "step_size": REACH * epsilon / STEPS}
    return _plain(item), entry


def _has_steps(algorithm: Algorithm) -> bool:
    row = ROWS[algorithm.key]
    return row.step == "alpha" and row.steps is not None and row.epsilon is not None


def _algorithm(family: str, word: str) -> Algorithm:
    """The algorithm of this name, however its letters are cased, of several libraries' the first in their order.

    Or the one algorithm of a library of this name, as of Marabou.
    """
    known = algorithms(family)
    for row in known:
        if _plain(row.name) == _plain(word):
            return row
    of_library = [row for row in known if _plain(row.library) == _plain(word)]
    if len(of_library) == 1:
        return of_library[0]
    raise UserError(unknown_word(family, word, [row.name for row in known], what=f"an algorithm of {family}"))


def _plain(word: str) -> str:
    return word.lower().replace(" ", "-").replace("_", "-")
