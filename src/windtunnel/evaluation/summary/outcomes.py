"""The record of outcomes of a run, which the gate of a later run compares with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import AssessmentKind, Json, Verdict
from windtunnel.core.outcomes import HELD, LOST, NOT_ASSESSED, PAIRED_METRIC, Outcomes, Record
from windtunnel.evaluation.summary.evidence import rows_of
from windtunnel.params.load import entries
from windtunnel.params.schema import Params


def record_outcomes(params: Params, summary: Artifacts, clean: Artifacts, assessments: Sequence[Artifacts]) -> Record:
    """The outcomes under `clean/accuracy`, `certified/accuracy`, `worst_case/accuracy` and of each assessment.

    The mean of a row is the metric of that name in metrics.json.
    """
    samples: dict[str, Json] = {"dataset": clean.metadata.provenance.dataset_digest, "seed": params.seed}
    budget: Json = params.budget.model_dump(mode="json")
    blocks: dict[str, dict[str, Json]] = {
        name: entry.model_dump(mode="json", exclude={"visualisers", "storage"}) for _, name, entry in entries(params)
    }
    settings: dict[str, Json] = {
        a.name: {"entry": blocks[a.name], "library_version": a.metadata.library_version}
        for a in assessments
        if a.kind in PAIRED_METRIC
    }
    right = clean.tensor("clean_predictions") == clean.tensor("targets")
    worst = summary.tensor("verdicts") == Verdict.ATTACK_FAILED
    certified = summary.tensor("certified_verdicts") == Verdict.VERIFIED
    found = {"clean/accuracy": Outcomes(_digest(samples), _row(right))}
    for metric, held in (("certified", certified), ("worst_case", worst)):
        if f"{metric}_accuracy" in summary.metrics:
            found[f"{metric}/accuracy"] = Outcomes(_digest(samples, budget, settings), _row(held))
    for artifacts, name, held in _counted(assessments):
        row = [NOT_ASSESSED] * len(right)
        for place, outcome in zip(rows_of(artifacts, clean.sample_names).tolist(), _row(held), strict=True):
            row[place] = outcome
        # An attack on what others left depends on the settings of those others too.
        scope = settings if blocks[artifacts.name].get("on") else settings[artifacts.name]
        found[f"{artifacts.name}/{name}"] = Outcomes(_digest(samples, budget, scope), "".join(row))
    return Record(clean.metadata.provenance.model_digest, tuple(clean.sample_names), found)


def _counted(assessments: Sequence[Artifacts]) -> Iterator[tuple[Artifacts, str, Tensor]]:
    for artifacts in assessments:
        kind = artifacts.kind
        if PAIRED_METRIC.get(kind) in artifacts.metrics:
            yield artifacts, PAIRED_METRIC[kind], _HELD[kind](artifacts)


def _unbroken(artifacts: Artifacts) -> Tensor:
    """As `adversarial_accuracy` counts: right on the clean input and not broken."""
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    return right & (artifacts.tensor("verdicts") != Verdict.ATTACK_SUCCEEDED)


def _verified(artifacts: Artifacts) -> Tensor:
    """As `certified_accuracy` counts; a smoothed model is verified on its own prediction, not the plain model's."""
    return artifacts.tensor("verdicts") == Verdict.VERIFIED


_HELD = {AssessmentKind.EMPIRICAL_ATTACK: _unbroken, AssessmentKind.FORMAL_VERIFICATION: _verified}


def _row(held: Tensor) -> str:
    return "".join(HELD if one else LOST for one in held.to(torch.bool).tolist())


def _digest(*parts: Json) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
