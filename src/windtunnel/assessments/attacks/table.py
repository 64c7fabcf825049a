"""Registry rows of the attacks family."""

from __future__ import annotations

from windtunnel.assessments.attacks import foolbox_rows, profiles, torchattacks_rows
from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.core.contracts import Algorithm

ROWS: dict[tuple[str, str], AttackRow] = {
    row.algorithm.key: row for row in (*torchattacks_rows.ROWS, *foolbox_rows.ROWS, *profiles.ROWS)
}
ALGORITHMS: tuple[Algorithm, ...] = tuple(row.algorithm for row in ROWS.values())
DEFAULT_VISUALISERS: tuple[str, ...] = ("ImagePairVisualiser", "PerturbationHeatmapVisualiser")
