"""Cache of results whose figures alone are drawn again: set aside before DVC takes the outputs of a stage away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from windtunnel.records.files import DATA_FILE, METADATA_FILE, RUNTIME_FILE

KEPT = Path(".cache/windtunnel/kept")
_FILES = (DATA_FILE, METADATA_FILE, RUNTIME_FILE)


def set_aside(directory: Path, digest: str) -> None:
    """Link the result in `directory`, without its figures, to where the stage looks for `digest`."""
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
