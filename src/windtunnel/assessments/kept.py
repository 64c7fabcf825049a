"""A result whose figures alone are to be drawn again, as `resolve` has set it aside."""

from __future__ import annotations

import shutil
from pathlib import Path

from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import Artifacts, provenance, read_artifacts
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.redraw_cache import KEPT

# What must be as it was beside what was resolved.
_SAME = ("dataset_digest", "model_digest", "device")


def take_back(digest: str, directory: Path, subject: Subject) -> Artifacts | None:
    """Put the result kept under `digest` into `directory`; None where there is none of this model on these samples."""
    source = KEPT / digest
    if not (source / METADATA_FILE).is_file():
        return None
    stored, now = read_artifacts(source).metadata.provenance, provenance(subject)
    if any(getattr(stored, key) != now[key] for key in _SAME):
        return None
    shutil.copytree(source, directory, dirs_exist_ok=True)
    shutil.rmtree(source)
    return read_artifacts(directory)
