"""Lines on the terminal. Imports nothing, because worker processes need it too."""

import sys


def warn(line: str | None) -> None:
    """Print one line on stderr about something that differs from params.yaml; do nothing for an empty line."""
    if line:
        print(f"windtunnel: {line}", file=sys.stderr, flush=True)
