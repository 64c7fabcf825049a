"""Stage `gate`: write the decision on the conditions of `gate`; never breaks the graph."""

from windtunnel.evaluation.gate.decide import decide, with_named
from windtunnel.params.resolved import read_resolved
from windtunnel.params.results import Gate
from windtunnel.records.files import read_block, write_json
from windtunnel.records.gate import OUTCOMES_FILE, gate_json, read_record
from windtunnel.records.layout import CHAMPION, GATE, METRICS, SUMMARY
from windtunnel.records.metadata import read_metadata
from windtunnel.records.sandwich import layers_of, read_summary


def main() -> None:
    """Write reports/gate.json. The champion is the one that was fetched, if one was."""
    champion = read_record(CHAMPION) if CHAMPION.is_file() else None
    entry = read_resolved("gate").work.entry
    result = decide(
        Gate.model_validate(entry["gate"]),
        read_block(METRICS),
        read_record(SUMMARY / OUTCOMES_FILE),
        champion,
        read_summary(SUMMARY).hard_failures,
        with_named(layers_of(read_metadata(SUMMARY).metrics), entry.get("budgets", [])),
    )
    write_json(gate_json(result), GATE)
