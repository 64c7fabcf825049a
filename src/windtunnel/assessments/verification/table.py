"""Registry rows of the verification family."""

from __future__ import annotations

from windtunnel.assessments.verification.rows import VerifierRow
from windtunnel.core.contracts import Algorithm
from windtunnel.core.plugins import libraries

ROWS: dict[tuple[str, str], VerifierRow] = {
    row.algorithm.key: row for library in libraries("verification").values() for row in library.rows()
}
ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())
