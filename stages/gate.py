"""Stage `gate`: write the verdict on the conditions of `gate`; never breaks the graph."""

from __future__ import annotations

from typing import cast

from windtunnel.core.contracts import Json
from windtunnel.core.files import METADATA_FILE, read_json, write_json
from windtunnel.gate.decide import decide, gate_json
from windtunnel.params.load import load_params
from windtunnel.workspace import GATE, METRICS, SUMMARY, user_errors


def main() -> None:
    """Write reports/gate.json."""
    summary = cast(dict[str, dict[str, Json]], read_json(SUMMARY / METADATA_FILE))
    failures = [str(line) for line in cast(list[Json], summary["kwargs"]["hard_failures"])]
    samples = int(str(summary["metrics"]["n_samples"]))
    metrics = cast(dict[str, Json], read_json(METRICS))
    write_json(gate_json(*decide(load_params().gate, metrics, samples, failures), failures), GATE)


if __name__ == "__main__":
    with user_errors():
        main()
