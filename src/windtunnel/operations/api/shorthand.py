"""Convert short arguments of the notebook API to entries of params.yaml: "pgd", "cascade", "fog", a function, or whole entries."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import TypeAlias

from windtunnel.assessments.attacks.settings import parameters_of
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.assessments.catalogue import algorithms
from windtunnel.boundary.arrays import plain_value
from windtunnel.boundary.callables import CallersFunctions, name_of
from windtunnel.core.contracts import Algorithm
from windtunnel.core.errors import UserError, shown, unknown_word
from windtunnel.core.transformations import KINDS
from windtunnel.params.entry import norm_of, parse_number
from windtunnel.registry.plugins import families, libraries

STEPS, REACH = 40, 2.5  # of an attack that is given by its name alone; how far they go in all, in epsilons
_MOST = 1000  # entries of a family

# One word, one function (attacks), words, functions or whole entries by name, or several words and functions.
Given: TypeAlias = "str | Callable[..., object] | Mapping[str, object] | Iterable[str | Callable[..., object]] | None"


def budget_block(budget: object) -> dict[str, object]:
    """Return `budget` of params.yaml from "Linf 8/255", "rotation 10" or its keys. Raises UserError for anything else."""
    if isinstance(budget, Mapping):
        block = plain_value(budget, "budget")
        assert isinstance(block, dict)
        return {**block, "norm": norm_of(block["norm"])} if "norm" in block else block
    parts = budget.split() if isinstance(budget, str) else []
    if len(parts) == 2:
        return {parts[0]: parts[1]} if parts[0] in KINDS else {"norm": norm_of(parts[0]), "epsilon": parts[1]}
    example = '"Linf 8/255" or "L2 0.5"'
    pair = budget if isinstance(budget, tuple | list) and len(budget) == 2 else ("Linf", budget)
    with suppress(ValueError, TypeError):
        norms: dict[object, str] = {inf: "Linf", 2: "L2", 1: "L1", 0: "L0"}
        norm = norms.get(pair[0], pair[0])
        example = f'"{norm} {parse_number(plain_value(pair[1], "budget")):.9g}"'
    raise UserError(f"budget: {shown(budget)} is not a norm and an epsilon; write {example}")


def epsilon_of(block: Mapping[str, object]) -> float | None:
    """Return the epsilon of a budget; None if it is invalid, which the schema reports."""
    with suppress(ValueError):
        return max(float(parse_number(block.get("epsilon"))), 0) or None
    return None


def entries_of(
    family: str, requested: Given, budget: Mapping[str, object], functions: CallersFunctions
) -> dict[str, object]:
    """Return the map of a family in params.yaml. Raises UserError, with the nearest match, for an unknown algorithm.

    An attack of torchattacks that is given by its name alone takes 40 steps of epsilon / 16 (2.5 epsilon in all, as Madry et al.
    2018 do): the library's own steps are those of 8/255, and would not reach the end of a larger ball.
    """
    if requested is None:
        return {}
    entries: dict[str, object] = {}
    if isinstance(requested, Mapping):
        for name, item in islice(requested.items(), _MOST):
            if not isinstance(name, str):
                raise UserError(f"{family}: {shown(name)} is no name of an entry; names are text")
            if isinstance(item, Mapping) and "loss" in item and "algorithm" in item:
                algorithm = _algorithm(family, item["algorithm"], str(item.get("library", "")))
                entries[name] = plain_value(_with_loss(algorithm, item, functions), f"{family}.{name}")
            elif isinstance(item, Mapping):
                entries[name] = plain_value(item, f"{family}.{name}")
            else:
                entries[name] = entry_of(family, item, budget, functions, name=name)[1]
        return entries
    several = [requested] if isinstance(requested, str | bytes) or callable(requested) else requested
    if not isinstance(several, Iterable):
        raise UserError(f"{family}: {shown(requested)} is neither an algorithm's name nor entries by name")
    for item in islice(several, _MOST):
        name, entry = entry_of(family, item, budget, functions)
        if name in entries:
            raise UserError(
                f"{family}: {name} is there twice; give each a name of its own: {{'first': ..., 'second': ...}}"
            )
        entries[name] = entry
    return entries


def entry_of(
    family: str,
    item: object,
    budget: Mapping[str, object],
    functions: CallersFunctions,
    written: Mapping[str, object] | None = None,
    name: str | None = None,
) -> tuple[str, dict[str, object]]:
    """Return the name and the entry of one word or function; see `entries_of`.

    Args:
        family: its key in params.yaml.
        item: an algorithm's name in any case, or a function that attacks.
        budget: its norm chooses among attacks of one name, PGDL2 for "pgd" under L2; its epsilon is for the default step size.
        functions: where a function without a module of its own is kept.
        written: further keys of the entry, which a default never contradicts.
        name: of the entry; the item's own where it is None.
    """
    where = f"{family}.{name}" if name else family
    written = written or {}
    if family == "attacks" and "loss" in written and isinstance(item, str):
        written = _with_loss(_algorithm(family, item, budget=budget), written, functions)
    extra = plain_value(written, where)
    assert isinstance(extra, dict)
    if callable(item) and "function" in libraries(family) and not isinstance(item, type):
        name = name or name_of(item)
        return name, {"library": "function", "algorithm": functions.reference(item, name), **extra}
    if not isinstance(item, str):
        what = "an algorithm's name or a function" if "function" in libraries(family) else "an algorithm's name"
        raise UserError(f"{where}: {shown(item)} is not {what}")
    algorithm = _algorithm(family, item, budget=budget)
    _check_keys(family, algorithm, extra)
    entry: dict[str, object] = {"library": algorithm.library, "algorithm": algorithm.name}
    epsilon = epsilon_of(budget)
    if family == "attacks" and epsilon and (search := _default_search(algorithm, epsilon, extra.get("params"))):
        entry["budget"] = search
    return name or _plain(item), {**entry, **extra}


def _with_loss(algorithm: Algorithm, entry: Mapping[str, object], functions: CallersFunctions) -> dict[str, object]:
    """Return an entry of `attacks` whose `loss`, a name or a function of logits and labels, is an invoker (APGD: a parameter)."""
    from windtunnel.assessments.attacks.losses import LOSSES, maximised, takes_loss  # imports both libraries

    loss, row = entry["loss"], ROWS[algorithm.key]
    changed = {key: value for key, value in entry.items() if key != "loss"}
    if loss in ("ce", "dlr") and "loss" in parameters_of(row):
        params = changed.get("params")
        return {**changed, "params": {**(params if isinstance(params, Mapping) else {}), "loss": loss}}
    if not takes_loss(row):
        raise UserError(
            f"attacks: {algorithm.name} has a loss of its own; PGD of torchattacks and the gradient descents of foolbox "
            f"(LinfPGD, L2PGD, ...) maximise any, APGD also ce and dlr"
        )
    if callable(loss):
        return {**changed, "invoker": functions.reference(partial(maximised, loss), "loss")}
    if loss not in LOSSES:
        raise UserError(f"{unknown_word('loss', str(loss), LOSSES)}, or a function of logits and labels")
    return {**changed, "invoker": f"{maximised.__module__}:{loss}"}


def _default_search(algorithm: Algorithm, epsilon: float, params: object) -> dict[str, object]:
    """Return the default steps and step size, without what `params` gives; none for an attack without both."""
    row = ROWS[algorithm.key]
    if row.step != "alpha" or row.steps is None or row.epsilon is None:
        return {}
    params_given = params if isinstance(params, dict) else {}
    steps = params_given.get(row.steps, STEPS)
    count = steps if isinstance(steps, int) and steps > 0 else STEPS
    defaults: dict[str, object] = {"steps": STEPS, "step_size": REACH * epsilon / count}
    return {k: v for k, v in defaults.items() if {"steps": row.steps, "step_size": row.step}[k] not in params_given}


def _check_keys(family: str, algorithm: Algorithm, extra: Mapping[str, object]) -> None:
    """Raise UserError for a parameter of an attack that is given as a key of its entry."""
    fields = families()[family].entry_type.model_fields
    for key, value in extra.items():
        if key not in fields and family == "attacks" and key in parameters_of(ROWS[algorithm.key]):
            raise UserError(
                f'attacks: {key} is a parameter of {algorithm.name}, not a key of an entry; write params={{"{key}": {shown(value)}}}'
            )


def _algorithm(family: str, word: str, library: str = "", budget: Mapping[str, object] | None = None) -> Algorithm:
    """Return the algorithm of this name, however its letters are cased, of several libraries' the first in their order.

    Or the one algorithm of a library of this name, as of Marabou. `library`: of which alone; empty for any. `budget`: one that
    works in it comes first, and may have the norm in its name: PGDL2 for "pgd", crown-l2 for "crown".
    """
    available = [row for row in algorithms(family) if library in ("", row.library)]
    norm, plain = str((budget or {}).get("norm", "")), _compact(word)
    names = {plain, plain + norm.lower(), norm.lower() + plain}
    if first := next((row for row in available if _compact(row.name) == plain), None):
        named = (row for row in available if _compact(row.name) in names and _works_in(family, row, budget or {}))
        return min(named, key=lambda row: (_compact(row.name) != plain, row.library != first.library), default=first)
    of_library = [row for row in available if _compact(row.library) == plain]
    if len(of_library) == 1:
        return of_library[0]
    raise UserError(unknown_word(family, word, [row.name for row in available], what=f"an algorithm of {family}"))


def _works_in(family: str, row: Algorithm, budget: Mapping[str, object]) -> bool:
    """Return True if an algorithm works in the norm of a budget, or in transformations where it is one."""
    if budget.keys() & KINDS.keys():
        return row.library == "transformations"
    norms: Iterable[object] = ROWS[row.key].allowed_norms if family == "attacks" else (row.norm,)
    return budget.get("norm") in norms


def _compact(word: str) -> str:
    return _plain(word).replace("-", "")


def _plain(word: str) -> str:
    return word.lower().replace(" ", "-").replace("_", "-")
