"""A report that numbers its samples: their names may be of patients, customers or files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import Json
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.words import kwargs, listed


def without_names(found: Found) -> Found:
    """`found` with every sample called `sample 1`, `sample 2` and so on, in the order of the run, wherever it is named."""
    if found.base is None:
        return found
    numbered = {name: f"sample {i + 1}" for i, name in enumerate(found.base.sample_names)}
    pictures = found.pictures
    if pictures:
        pictures = replace(pictures, names=[numbered[name] for name in pictures.names])
    return replace(
        found,
        pictures=pictures,
        clean=_renamed(found.clean, numbered),
        summary=_renamed(found.summary, numbered),
        assessments=tuple(a for one in found.assessments if (a := _renamed(one, numbered))),
    )


def _renamed(artifacts: Artifacts | None, numbered: Mapping[str, str]) -> Artifacts | None:
    if artifacts is None:
        return None
    options = dict(kwargs(artifacts))
    options["sample_names"] = [numbered.get(name, "a sample of another run") for name in artifacts.sample_names]
    options["hard_failures"] = [_in_text(line, numbered) for line in listed(options, "hard_failures")]
    caveats: list[Json] = [
        {
            **row,
            "text": _in_text(row.get("text"), numbered),
            "samples": [numbered.get(str(s), "") for s in listed(row, "samples")],
        }
        for row in listed(artifacts.metadata, "caveats")
        if isinstance(row, Mapping)
    ]
    return replace(artifacts, metadata={**artifacts.metadata, "kwargs": options, "caveats": caveats})


def _in_text(value: Json, numbered: Mapping[str, str]) -> str:
    """A sentence whose `sample <name>` is numbered. Not every occurrence of a name: it may be a number itself."""
    return re.sub(r"\bsample ([^\s,;:]+)", lambda found: numbered.get(found[1], found[0]), str(value))
