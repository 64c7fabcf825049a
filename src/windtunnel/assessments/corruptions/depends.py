"""Dependencies of a corruption suite beyond the imports of its stage."""

from __future__ import annotations

from pathlib import Path

from windtunnel.assessments.depends import Depends
from windtunnel.params.corruptions import CorruptionEntry


def _reference(entry: CorruptionEntry) -> dict[str, str]:
    reference = entry.reference
    return {"reference": reference} if reference and Path(reference).is_dir() else {}


DEPENDS = Depends(own_budget=lambda entry: True, files=_reference)
