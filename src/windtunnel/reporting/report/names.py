"""A report that numbers its samples: their names may be of patients, customers or files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from windtunnel.records.artifacts import Artifacts
from windtunnel.records.sandwich import options_of_summary


def numbers_of(base: Artifacts | None) -> dict[str, str]:
    """`sample 1`, `sample 2` and so on for the samples of `base`, in its order; nothing without it."""
    return {name: f"sample {i + 1}" for i, name in enumerate(base.sample_names)} if base else {}


def numbered_samples(artifacts: Artifacts, numbered: Mapping[str, str]) -> Artifacts:
    """`artifacts` with every sample called by its number, in its options, its caveats and its hard failures."""
    metadata = artifacts.metadata
    caveats = tuple(
        caveat.model_copy(
            update={
                "text": _in_text(caveat.text, numbered),
                "samples": tuple(numbered.get(s, "") for s in caveat.samples),
            }
        )
        for caveat in metadata.caveats
    )
    options: dict[str, object] = {
        "sample_names": tuple(numbered.get(name, "a sample of another run") for name in artifacts.sample_names)
    }
    if "hard_failures" in metadata.kwargs.extra:
        options["hard_failures"] = [_in_text(line, numbered) for line in options_of_summary(metadata).hard_failures]
    renamed = {"caveats": caveats, "kwargs": metadata.kwargs.model_copy(update=options)}
    return replace(artifacts, metadata=metadata.model_copy(update=renamed))


def _in_text(text: str, numbered: Mapping[str, str]) -> str:
    """A sentence whose `sample <name>` is numbered. Not every occurrence of a name: it may be a number itself."""
    return re.sub(r"\bsample ([^\s,;:]+)", lambda match: numbered.get(match[1], match[0]), text)
