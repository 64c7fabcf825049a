"""Registry rows of the attacks family."""

from __future__ import annotations

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.core.contracts import Algorithm
from windtunnel.core.plugins import libraries

ROWS: dict[tuple[str, str], AttackRow] = {
    row.algorithm.key: row for library in libraries("attacks").values() for row in library.rows()
}
ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())
