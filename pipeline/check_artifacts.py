"""After a run: is everything there that the contract promises, and does it hold together?"""

from __future__ import annotations

import sys

from windtunnel.core.artifacts import read_artifacts
from windtunnel.core.endings import user_errors
from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json
from windtunnel.core.layout import CLEAN, GATE, METRICS, REPORTS, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.params.load import entries, load_params


def main() -> None:
    """Read every artifact back. Raises UserError at the first that is missing, damaged or empty."""
    params = load_params()
    directories = [CLEAN, SANITY, SUMMARY, *(ROBUSTNESS / name for _, name, _ in entries(params))]
    for directory in directories:
        artifacts = read_artifacts(directory)
        for row in artifacts.metadata.visualisers:
            if not (directory / row.file).is_file():
                raise UserError(f"{directory}: metadata.json lists {row.file}, which is not there")
    for file in (METRICS, GATE):
        read_json(file)
    for name in (f"report.{extension}" for extension in ("pdf", "html")):
        if not (REPORTS / name).stat().st_size:
            raise UserError(f"{REPORTS / name}: is empty")
    if failures := read_artifacts(SUMMARY).metrics["hard_failures"]:
        raise UserError(f"{SUMMARY}: {failures} hard failures in the default run")
    print(f"{len(directories)} assessments, the report and the gate's verdict are whole")
    sys.stdout.flush()


if __name__ == "__main__":
    with user_errors():
        main()
