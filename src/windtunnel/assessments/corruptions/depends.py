"""Dependencies of a corruption suite beyond the imports of its stage."""

from collections.abc import Iterator
from pathlib import Path

from windtunnel.assessments.depends import Depends, module_of
from windtunnel.params.corruptions import FUNCTION, CorruptionEntry


def _files(entry: CorruptionEntry) -> dict[str, str]:
    reference = entry.reference
    files = {"reference": reference} if reference and Path(reference).is_dir() else {}
    return {**files, **({"path": entry.path} if entry.path else {})}


def _functions(entry: CorruptionEntry) -> Iterator[str]:
    if entry.library == FUNCTION:
        for reference in entry.corruptions or (entry.algorithm,):
            yield from module_of(reference)


DEPENDS = Depends(own_budget=lambda entry: True, files=_files, code=_functions)
