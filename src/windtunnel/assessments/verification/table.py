"""Registry rows of the verification family."""

from windtunnel.assessments.verification.rows import VerifierRow
from windtunnel.core.contracts import Algorithm
from windtunnel.registry.plugins import rows_of

ROWS: dict[tuple[str, str], VerifierRow] = {row.algorithm.key: row for row in rows_of("verification")}
ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())
