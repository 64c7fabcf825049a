"""Digests of the result of an assessment: later stages depend on these, and not on how they are drawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from windtunnel.records.files import DATA_FILE, METADATA_FILE, file_digest, read_block, write_json
from windtunnel.records.layout import DIGESTS


def result_digests(directory: Path) -> dict[str, str]:
    """sha256 of the tensors and of the metadata, without its list of figures, in `directory` and below it."""
    digests: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        if path.name == DATA_FILE:
            digests[path.relative_to(directory).as_posix()] = file_digest(path)
        elif path.name == METADATA_FILE:
            text = json.dumps(
                {key: value for key, value in read_block(path).items() if key != "visualisers"}, sort_keys=True
            )
            digests[path.relative_to(directory).as_posix()] = hashlib.sha256(text.encode()).hexdigest()
    return digests


def write_digests(directory: Path) -> None:
    """Write the digests of one assessment's results beside those of the others."""
    write_json(result_digests(directory), digests_file(directory.name))


def digests_file(name: str) -> Path:
    """Return the path of the digests of the assessment `name`."""
    return DIGESTS / f"{name}.json"
