"""Dependencies of a verification beyond the imports of its stage: the code and the libraries of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windtunnel.assessments.depends import Depends
from windtunnel.assessments.verification.cascade.step import library_of_step
from windtunnel.assessments.verification.table import ROWS
from windtunnel.params.verification import VerificationEntry

if TYPE_CHECKING:
    from windtunnel.params.schema import Params


def _steps(entry: VerificationEntry) -> tuple[str, ...]:
    """Return the steps that decide an entry; none for an algorithm that goes its own way."""
    row = ROWS[entry.library, entry.algorithm]
    return entry.steps if row.of_entry else row.steps


def _options(entry: VerificationEntry, params: Params) -> frozenset[str]:
    libraries = [library_of_step(step) for step in _steps(entry)]
    return frozenset(name for library in libraries for name in (library.name, *library.uses)) - {"windtunnel"}


def _code(entry: VerificationEntry) -> Iterator[str]:
    yield from (library_of_step(step).steps[step].module for step in _steps(entry))
    assess = ROWS[entry.library, entry.algorithm].assess
    if assess is not None:
        yield assess.module


DEPENDS = Depends(_options, code=_code)
