"""Registry rows of the attacks family."""

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.core.contracts import Algorithm
from windtunnel.registry.plugins import libraries, rows_of

ROWS: dict[tuple[str, str], AttackRow] = {row.algorithm.key: row for row in rows_of("attacks")}


def row_of(algorithm: Algorithm) -> AttackRow:
    """Return the registry row of an attack, be it of a library's list or a function of the user's."""
    make_row = libraries("attacks")[algorithm.library].row_of
    row: AttackRow = make_row()(algorithm.name) if make_row else ROWS[algorithm.key]
    return row


ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())
