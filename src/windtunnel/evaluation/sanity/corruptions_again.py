"""Run a corruption suite again, on a few samples, to see whether the pixels are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from windtunnel.core.artifacts import AssessmentResult, read_artifacts
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.evidence import Evidence, Piece

SAMPLES = 8


def differing(evidence: Evidence, piece: Piece, pairs: Sequence[tuple[str, int]]) -> list[str]:
    """The corruptions of a suite that give other pixels when run twice, or than the suite kept."""
    from windtunnel.assessments.corruptions.assess import assess_suite

    lowest = min(severity for _, severity in pairs)
    entry = evidence.params.corruptions[piece.name].model_copy(update={"severities": [lowest], "workers": 1})
    subject = evidence.subject.subset(piece.rows[:SAMPLES])

    def once() -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}

        def keep(result: AssessmentResult) -> None:
            kept[result.name] = cast(Tensor, result.data["perturbed_inputs"])

        assess_suite(f"{piece.name}.again", entry, subject, keep)
        return kept

    first, second = once(), once()
    wrong = []
    for name, pixels in first.items():
        stored = _stored(piece, name)
        if not torch.equal(pixels, second[name]) or (stored is not None and not torch.equal(pixels, stored[:SAMPLES])):
            wrong.append(name)
    return wrong


def _stored(piece: Piece, name: str) -> Tensor | None:
    try:
        return read_artifacts(piece.artifacts.directory / name).tensor("perturbed_inputs")
    except UserError:
        return None
