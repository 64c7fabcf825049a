"""The record of outcomes of a run, which the gate of a later run compares with."""

import hashlib
import json
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from windtunnel.core.contracts import AssessmentKind, Json, Verdict
from windtunnel.core.sample_states import SampleState
from windtunnel.evaluation.summary.evidence import indices_of
from windtunnel.evaluation.summary.slices import MEMBERS, slices_of
from windtunnel.params.load import entries
from windtunnel.params.schema import Params
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.gate import HELD, LOST, NOT_ASSESSED, PAIRED_METRIC, OutcomeRecord, Outcomes, Shares
from windtunnel.records.sandwich import layers_of

V = TypeVar("V")
A = TypeVar("A")


def record_outcomes(
    params: Params, summary: Artifacts, clean: Artifacts, assessments: Sequence[Artifacts], dataset_digest: str = ""
) -> OutcomeRecord:
    """Return the outcomes under the metrics of the sandwich and of each assessment.

    The mean of a row over its assessed samples is the metric of that name in metrics.json. dataset_digest: of the whole
    data set where `clean` is of a part of it.
    """
    digest = dataset_digest or clean.metadata.provenance.dataset_digest
    samples: dict[str, Json] = {"dataset": digest, "seed": params.seed}
    budget: Json = params.budget.model_dump(mode="json")
    blocks: dict[str, dict[str, Json]] = {
        name: entry.model_dump(mode="json", exclude={"visualisers", "storage"}) for _, name, entry in entries(params)
    }
    entries_run: dict[str, Json] = {
        a.name: {"entry": blocks[a.name], "library_version": a.metadata.library_version} for a in assessments
    }
    # Corruptions decide nothing of the worst case.
    settings: dict[str, Json] = {a.name: entries_run[a.name] for a in assessments if a.kind in _HELD}
    right = clean.tensor("clean_predictions") == clean.tensor("targets")
    states, drawn = summary.tensor("sample_states"), summary.tensor("drawn")
    survived, certified = (states == state.code for state in (SampleState.SURVIVED, SampleState.CERTIFIED))
    outcomes: dict[str, Outcomes | Shares] = {"clean/accuracy": Outcomes(_digest(samples), _row(right))}
    all_samples, ball = torch.ones_like(drawn), (params.budget.norm, params.budget.epsilon)
    sandwiched = drawn if drawn.any() else all_samples
    for metric, source, robust, of in (
        ("certified/accuracy", "certified_accuracy", certified, sandwiched),
        ("certified/accuracy_all", "certified_accuracy_all", certified, all_samples),
        ("worst_case/accuracy", "worst_case_accuracy", certified | survived, drawn),
    ):
        if source in summary.metrics:
            row = _spread(_row(robust[of]), of.nonzero().flatten().tolist(), len(of), NOT_ASSESSED)
            outcomes[metric] = Outcomes(_digest(samples, budget, settings), "".join(row), *ball)
    for (column, value), members in zip(slices_of(summary), summary.data.get(MEMBERS, ()), strict=True):
        for source, is_held, of in (
            ("clean_accuracy", right, all_samples),
            ("certified_accuracy", certified, sandwiched),
            ("worst_case_accuracy", certified | survived, drawn),
        ):
            mine = of & members
            if source in summary.metrics and mine.any():
                row = _spread(_row(is_held[mine]), mine.nonzero().flatten().tolist(), len(mine), NOT_ASSESSED)
                is_clean = source.startswith("clean")
                digest = _digest(samples) if is_clean else _digest(samples, budget, settings)
                outcomes[f"slices/{column}/{value}/{source}"] = Outcomes(
                    digest, "".join(row), *(() if is_clean else ball)
                )
    layers = layers_of(summary.metrics) if "sandwich_states" in summary.data else ()
    for position, layer in enumerate(layers):
        if layer.name:
            drawn, states = summary.tensor("sandwich_drawn")[position], summary.tensor("sandwich_states")[position]
            survived, certified = (states == s.code for s in (SampleState.SURVIVED, SampleState.CERTIFIED))
            scope: Json = {"norm": layer.norm.value, "epsilon": layer.epsilon}
            ends = (("worst_case", layer.worst_case, certified | survived), ("certified", layer.certified, certified))
            for group, rate, robust in ends:
                of = drawn if drawn.any() else all_samples
                if rate:
                    row = _spread(_row(robust[of]), of.nonzero().flatten().tolist(), len(of), NOT_ASSESSED)
                    outcomes[f"{group}/{layer.name}/accuracy"] = Outcomes(
                        _digest(samples, scope, settings), "".join(row), layer.norm, layer.epsilon
                    )
    for artifacts in assessments:
        if (metric := PAIRED_METRIC[artifacts.kind]) not in artifacts.metrics:
            continue
        places, name = indices_of(artifacts, clean.sample_names).tolist(), f"{artifacts.name}/{metric}"
        if artifacts.kind in _HELD:
            # An attack on what others left depends on the settings of those others too.
            own_scope = settings if blocks[artifacts.name].get("on") else entries_run[artifacts.name]
            row = _spread(_row(_HELD[artifacts.kind](artifacts)), places, len(right), NOT_ASSESSED)
            region = artifacts.metadata.semantics.perturbation
            outcomes[name] = Outcomes(_digest(samples, budget, own_scope), "".join(row), region.norm, region.epsilon)
        else:
            images = _right_images(artifacts)
            counts = _spread(images.sum(0).tolist(), places, len(right), None)
            outcomes[name] = Shares(_digest(samples, entries_run[artifacts.name]), tuple(counts), len(images))
    return OutcomeRecord(clean.metadata.provenance.model_digest, tuple(clean.sample_names), outcomes)


def _spread(values: Sequence[V], places: Sequence[int], n: int, absent: A) -> list[V | A]:
    """Return the values at their places among n samples."""
    row: list[V | A] = [absent] * n
    for position, value in zip(places, values, strict=True):
        row[position] = value
    return row


def _right_images(artifacts: Artifacts) -> Tensor:
    """Bool (P, N): of the P perturbed images of each sample, which are classified rightly."""
    key = "corruption_predictions" if "corruption_predictions" in artifacts.data else "perturbed_predictions"
    targets = artifacts.tensor("targets")
    return (artifacts.tensor(key) == targets).reshape(-1, len(targets))


def _unbroken(artifacts: Artifacts) -> Tensor:
    """Return outcomes as `adversarial_accuracy` counts them: right on the clean input and not broken."""
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    verdicts = artifacts.tensor("verdicts")
    return right & (verdicts != Verdict.ATTACK_SUCCEEDED) & (verdicts != Verdict.ERROR)


def _verified(artifacts: Artifacts) -> Tensor:
    """Return outcomes as `certified_accuracy` counts them; a smoothed model is verified on its own prediction, not the plain model's."""
    return artifacts.tensor("verdicts") == Verdict.VERIFIED


_HELD = {AssessmentKind.EMPIRICAL_ATTACK: _unbroken, AssessmentKind.FORMAL_VERIFICATION: _verified}


def _row(is_correct: Tensor) -> str:
    return "".join(HELD if is_set else LOST for is_set in is_correct.to(torch.bool).tolist())


def _digest(*parts: Json) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
