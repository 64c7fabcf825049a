"""A report that numbers its samples: their names may be of patients, customers or files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import Json
from windtunnel.core.metadata import parse_metadata
from windtunnel.reporting.report.words import kwargs, listed


def numbers_of(base: Artifacts | None) -> dict[str, str]:
    """`sample 1`, `sample 2` and so on for the samples of `base`, in its order; nothing without it."""
    return {name: f"sample {i + 1}" for i, name in enumerate(base.sample_names)} if base else {}


def numbered_samples(artifacts: Artifacts, numbered: Mapping[str, str]) -> Artifacts:
    """`artifacts` with every sample called by its number, in its options, its caveats and its hard failures."""
    options = dict(kwargs(artifacts))
    options["sample_names"] = [numbered.get(name, "a sample of another run") for name in artifacts.sample_names]
    options["hard_failures"] = [_in_text(line, numbered) for line in listed(options, "hard_failures")]
    caveats: list[Json] = [
        {
            **row,
            "text": _in_text(row.get("text"), numbered),
            "samples": [numbered.get(str(s), "") for s in listed(row, "samples")],
        }
        for row in listed(artifacts.plain, "caveats")
        if isinstance(row, Mapping)
    ]
    content = {**artifacts.plain, "kwargs": options, "caveats": caveats}
    return replace(artifacts, metadata=parse_metadata(content, artifacts.name))


def _in_text(value: Json, numbered: Mapping[str, str]) -> str:
    """A sentence whose `sample <name>` is numbered. Not every occurrence of a name: it may be a number itself."""
    return re.sub(r"\bsample ([^\s,;:]+)", lambda found: numbered.get(found[1], found[0]), str(value))
