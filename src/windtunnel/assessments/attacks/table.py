"""Registry rows of the attacks family, and dependencies of an attack beyond the imports of its stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.depends import Depends, code_of_others, module_of, other_models, remote
from windtunnel.core.contracts import Algorithm
from windtunnel.params.attacks import AttackEntry
from windtunnel.registry.plugins import libraries, rows_of

if TYPE_CHECKING:
    from windtunnel.params.schema import Params

ROWS: dict[tuple[str, str], AttackRow] = {row.algorithm.key: row for row in rows_of("attacks")}


def row_of(algorithm: Algorithm) -> AttackRow:
    """Return the registry row of an attack, be it of a library's list or a function of the user's."""
    make_row = libraries("attacks")[algorithm.library].row_of
    row: AttackRow = make_row()(algorithm.name) if make_row else ROWS[algorithm.key]
    return row


ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())


def _options(attack: AttackEntry, params: Params) -> frozenset[str]:
    libraries = {attack.library}
    if attack.library == "windtunnel":
        from windtunnel.assessments.attacks.profiles import PROFILES

        norm = attack.budget.over(params.budget).norm
        libraries = {member.library for member in PROFILES[attack.algorithm].get(norm, ())}
    adaptive = {attack.algorithm} & {"adaptive"}
    return frozenset({"any attack", *libraries, *adaptive}) | remote(attack.transfer_to.values())


def _code(attack: AttackEntry) -> Iterator[str]:
    for function in (attack.invoker, attack.adapt, attack.algorithm if attack.library == "function" else None):
        yield from module_of(function)
    yield from code_of_others(attack.transfer_to.values())


DEPENDS = Depends(
    _options,
    files=lambda attack: other_models({f"transfer_to.{key}": model for key, model in attack.transfer_to.items()}),
    code=_code,
)
