"""Digests of results, on which later stages depend, and results set aside while their figures alone are drawn again."""

import hashlib
import json
import os
import shutil
from pathlib import Path

from windtunnel.records.files import DATA_FILE, METADATA_FILE, RUNTIME_FILE, file_digest, read_block, write_json
from windtunnel.records.layout import DIGESTS

KEPT = Path(".cache/windtunnel/kept")
_FILES = (DATA_FILE, METADATA_FILE, RUNTIME_FILE)


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


def set_aside(directory: Path, digest: str) -> None:
    """Link the result in `directory`, without its figures, to where the stage looks for `digest`: DVC takes its outputs away."""
    target = KEPT / digest
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(directory.rglob("*")):
        if path.name in _FILES:
            copy = target / path.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, copy)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, copy)
