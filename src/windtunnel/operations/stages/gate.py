"""Stage `gate`: write the verdict on the conditions of `gate`; never breaks the graph."""

from __future__ import annotations

from typing import cast

from windtunnel.core.contracts import Json
from windtunnel.core.files import METADATA_FILE, read_json, write_json
from windtunnel.core.layout import CHAMPION, GATE, METRICS, SUMMARY
from windtunnel.core.outcomes import OUTCOMES_FILE, read_record
from windtunnel.evaluation.gate.decide import decide, gate_json
from windtunnel.params.outcome import Gate
from windtunnel.params.resolved import read_resolved


def main() -> None:
    """Write reports/gate.json. The champion is the one that was fetched, if one was."""
    summary = cast(dict[str, dict[str, Json]], read_json(SUMMARY / METADATA_FILE))
    failures = tuple(str(line) for line in cast(list[Json], summary["kwargs"]["hard_failures"]))
    metrics = cast(dict[str, Json], read_json(METRICS))
    champion = read_record(CHAMPION) if CHAMPION.is_file() else None
    verdict = decide(
        Gate.model_validate(read_resolved("gate").work.entry["gate"]),
        metrics,
        read_record(SUMMARY / OUTCOMES_FILE),
        champion,
        failures,
    )
    write_json(gate_json(verdict), GATE)
