"""From `params` and `budget` to the arguments a library wants, checked against the library's own signature."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from windtunnel.assessments.attacks.rows import AT_CALL, AttackRow, Invoker
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.entry import MAX_COUNT, parse_number
from windtunnel.registry.plugins import library_of

# What a user never gives: the model is ours, and these print or write log files.
_OURS = frozenset("self problem args kwargs model verbose tensorboard init_attack trainloader attack_class".split())
_EPSILON_WORDS = {"eps", "epsilon", "epsilons", "max_epsilon"}
# Parameters that our invokers add to the library's own.
_EXTRA: dict[Invoker, dict[str, object]] = {
    Invoker.MANY_ATTACKS: {"attacks": ["FGSM", "PGD"]},
    Invoker.SURROGATES: {"alpha": None, "steps": 10},
}


@dataclass(frozen=True, slots=True)
class Settings:
    """arguments: what the user or the budget gave, by the library's names. effective: with the library's defaults."""

    arguments: dict[str, object]
    effective: dict[str, object]
    budget: PerturbationBudget


def library_class(row: AttackRow) -> Callable[..., Any]:
    """Return the library's class of an attack. Imports the library."""
    return library_of(row.algorithm.library, "attacks").algorithm(row.algorithm.name)


def parameters_of(row: AttackRow) -> dict[str, object]:
    """Parameters a user may give in `params`, and their defaults."""
    if row.is_ensemble:
        return dict(row.defaults)
    signature = inspect.signature(library_class(row)).parameters.values()
    defaults = {p.name: None if p.default is p.empty else p.default for p in signature if p.name not in _OURS}
    defaults |= {**_EXTRA.get(row.invoker, {}), **row.defaults}
    return {name: default for name, default in defaults.items() if name not in row.managed}


def members_of(attacks: object) -> list[tuple[str, Mapping[str, object]]]:
    """(name, parameters) of each attack that MultiAttack wraps: `PGD` or `{PGD: {steps: 20}}`; none if `attacks` is no such list."""
    members: list[tuple[str, Mapping[str, object]]] = []
    for member in attacks if isinstance(attacks, list | tuple) else ():
        name, params = next(iter(member.items())) if isinstance(member, Mapping) and len(member) == 1 else (member, {})
        members.append((str(name), params if isinstance(params, Mapping) else {}))
    return members


def settle(
    where: str, row: AttackRow, params: Mapping[str, object], budget: PerturbationBudget, key: str = "params"
) -> Settings:
    """Return the arguments of an attack under `budget`; `key` below `where` is where `params` are given.

    Raises UserError, in one line, for a parameter the library does not have, one that belongs into `budget`, a value
    of the wrong type, and a step size or steps in the budget of an attack that has none.
    """
    defaults = parameters_of(row)
    values: dict[str, object] = {}
    for name, value in params.items():
        values[name] = _value(where, key, row, defaults, name, value)
    for key, parameter, budgeted in (("step_size", row.step, budget.step_size), ("steps", row.steps, budget.steps)):
        if budgeted is None or row.invoker is Invoker.FUNCTION:  # which is handed the whole budget
            continue
        if parameter is None:
            raise UserError(f"{where}.budget.{key}: {row.algorithm.name} has no {key.replace('_', ' ')}; remove it")
        if parameter in values and values[parameter] != budgeted:
            raise UserError(
                f"{where}: budget.{key} ({budgeted:g}) and params.{parameter} ({values[parameter]}) contradict; keep one"
            )
        values[parameter] = budgeted
    effective = {**defaults, **values}
    return Settings(values, effective, _search(row, effective, budget))


def check_epsilon(where: str, budget: PerturbationBudget) -> None:
    """Raise UserError, in one line, for an epsilon that cannot be meant under its norm."""
    epsilon, key = budget.epsilon, f"{where}.budget.epsilon"
    if epsilon is not None and budget.norm is Norm.LINF and epsilon > 1:
        raise UserError(f"{key}: {epsilon:g} is larger than the range of [0, 1] pixels; did you mean {epsilon:g}/255?")
    if epsilon is not None and budget.norm is Norm.L0 and epsilon < 1:
        raise UserError(f"{key}: under L0 it is a number of changed values, at least 1; got {epsilon:g}")


def _value(where: str, key: str, row: AttackRow, defaults: Mapping[str, object], name: str, value: object) -> object:
    if name in row.managed or name in _EPSILON_WORDS:
        if name == row.norm_key:
            raise UserError(f"{where}.{key}.{name}: the budget says the norm; set {where}.budget.norm instead")
        if name == row.classes:
            raise UserError(f"{where}.{key}.{name}: the model says how many classes there are; remove it")
        if row.epsilon is None and name not in defaults:
            raise UserError(
                f"{where}.{key}.{name}: {row.algorithm.name} takes no epsilon; it finds its own distance, and "
                f"{where}.budget.epsilon says what counts as success"
            )
        if name not in defaults:
            raise UserError(f"{where}.{key}.{name}: epsilon belongs into the budget: set {where}.budget.epsilon")
    if name not in defaults:
        raise UserError(unknown_word(f"{where}.{key}", name, defaults, what=f"a parameter of {row.algorithm.name}"))
    default = defaults[name]
    if isinstance(value, str) and not isinstance(default, str):
        with suppress(ValueError):  # a word: evaluated by type below
            value = parse_number(value)
    numeric = isinstance(default, int | float) and not isinstance(default, bool)
    if numeric and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise UserError(f"{where}.{key}.{name}: {value!r} is not a number (the default is {default})")
    if isinstance(default, bool) and not isinstance(value, bool):
        raise UserError(f"{where}.{key}.{name}: {value!r} is neither true nor false (the default is {default})")
    if isinstance(default, str) and not isinstance(value, str):
        raise UserError(f"{where}.{key}.{name}: {value!r} is not a word (the default is {default})")
    if isinstance(default, int) and isinstance(value, float) and not value.is_integer():
        raise UserError(f"{where}.{key}.{name}: {value} is not a whole number (the default is {default})")
    if isinstance(default, int) and default > 0 and isinstance(value, int | float) and value < 0:
        raise UserError(f"{where}.{key}.{name}: {value} is negative (the default is {default})")
    if isinstance(default, int) and isinstance(value, int | float) and value > MAX_COUNT:
        raise UserError(f"{where}.{key}.{name}: {value} is too large; {MAX_COUNT} at most (the default is {default})")
    if isinstance(default, int) and isinstance(value, float):
        return int(value)
    return tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value


def _search(row: AttackRow, effective: Mapping[str, object], budget: PerturbationBudget) -> PerturbationBudget:
    """Return the budget with the step size and the effective steps, library defaults included."""
    if row.invoker is Invoker.FUNCTION:
        return budget
    step, steps = (effective.get(key) if key else None for key in (row.step, row.steps))
    relative = effective.get("rel_stepsize")
    if step is None and row.step == "abs_stepsize" and isinstance(relative, float) and budget.epsilon is not None:
        step = relative * budget.epsilon
    epsilon = None if row.invoker is Invoker.UNBOUNDED else budget.epsilon
    return PerturbationBudget(
        budget.norm,
        epsilon,
        float(step) if isinstance(step, int | float) else None,
        int(steps) if isinstance(steps, int | float) else None,
    )


def norm_argument(row: AttackRow, norm: Norm) -> dict[str, object]:
    """Return the library's argument that chooses the norm, where it has one."""
    if row.norm_key is None:
        return {}
    return {row.norm_key: norm.value.lower() if row.norm_key == "constraint" else norm.value}


def epsilon_argument(row: AttackRow, epsilon: float | None) -> dict[str, object]:
    """Return the constructor's argument that takes the epsilon, where there is one."""
    return {} if row.epsilon in {None, AT_CALL} else {str(row.epsilon): epsilon}
