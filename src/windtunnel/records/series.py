"""Series on disk, in the form that `dvc plots` reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from windtunnel.records.files import replacing


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """A CSV file with a header; the same rows give the same bytes on every system."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
