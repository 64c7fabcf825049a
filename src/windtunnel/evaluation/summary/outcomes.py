"""The record of outcomes of a run, which the gate of a later run compares with."""

import hashlib
import json
from collections.abc import Sequence

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
    all_samples, certified, robust = torch.ones_like(right), *_ends(summary.tensor("sample_states"))
    drawn = summary.tensor("drawn")
    sandwiched = drawn if drawn.any() else all_samples
    of_clean, of_run = _digest(samples), _digest(samples, budget, settings)
    ball = (params.budget.norm, params.budget.epsilon)
    outcomes: dict[str, Outcomes | Shares] = {"clean/accuracy": Outcomes(of_clean, _row(right, all_samples))}
    for metric, source, is_held, of in (
        ("certified/accuracy", "certified_accuracy", certified, sandwiched),
        ("certified/accuracy_all", "certified_accuracy_all", certified, all_samples),
        ("worst_case/accuracy", "worst_case_accuracy", robust, drawn),
    ):
        if source in summary.metrics:
            outcomes[metric] = Outcomes(of_run, _row(is_held, of), *ball)
    for (column, value), members in zip(slices_of(summary), summary.data.get(MEMBERS, ()), strict=True):
        for source, is_held, of in (
            ("clean_accuracy", right, all_samples),
            ("certified_accuracy", certified, sandwiched),
            ("worst_case_accuracy", robust, drawn),
        ):
            if source in summary.metrics and (of & members).any():
                states, is_clean = _row(is_held, of & members), source == "clean_accuracy"
                row = Outcomes(of_clean, states) if is_clean else Outcomes(of_run, states, *ball)
                outcomes[f"slices/{column}/{value}/{source}"] = row
    layers = layers_of(summary.metrics) if "sandwich_states" in summary.data else ()
    for position, layer in enumerate(layers):
        if not layer.name:
            continue
        drawn = summary.tensor("sandwich_drawn")[position]
        certified, robust = _ends(summary.tensor("sandwich_states")[position])
        scope: Json = {"norm": layer.norm.value, "epsilon": layer.epsilon}
        of_layer = _digest(samples, scope, settings)
        ends = (("worst_case", layer.worst_case, robust), ("certified", layer.certified, certified))
        for group, rate, is_held in ends:
            if rate:
                states = _row(is_held, drawn if drawn.any() else all_samples)
                outcomes[f"{group}/{layer.name}/accuracy"] = Outcomes(of_layer, states, layer.norm, layer.epsilon)
    for artifacts in assessments:
        if (metric := PAIRED_METRIC[artifacts.kind]) not in artifacts.metrics:
            continue
        places, name = indices_of(artifacts, clean.sample_names), f"{artifacts.name}/{metric}"
        if artifacts.kind in _HELD:
            is_held, of = torch.zeros_like(right), torch.zeros_like(right)
            is_held[places], of[places] = _HELD[artifacts.kind](artifacts), True
            # An attack on what others left depends on the settings of those others too.
            own_scope = settings if blocks[artifacts.name].get("on") else entries_run[artifacts.name]
            region = artifacts.metadata.semantics.perturbation
            own_scope = entries_run if region.is_around_corrupted else own_scope  # also on those of the corruptions
            digest = _digest(samples, budget, own_scope)
            outcomes[name] = Outcomes(digest, _row(is_held, of), region.norm, region.epsilon)
        else:
            images = _right_images(artifacts)
            counts = dict(zip(places.tolist(), images.sum(0).tolist(), strict=True))
            shares = tuple(counts.get(i) for i in range(len(right)))
            outcomes[name] = Shares(_digest(samples, entries_run[artifacts.name]), shares, len(images))
    return OutcomeRecord(clean.metadata.provenance.model_digest, tuple(clean.sample_names), outcomes)


def _ends(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples of `states` (N,) are certified, and which count as right in the worst case; bool (N,)."""
    certified = states == SampleState.CERTIFIED.code
    return certified, certified | (states == SampleState.SURVIVED.code)


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


def _row(is_held: Tensor, assessed: Tensor) -> str:
    """Return the outcome of each sample, both masks bool (N,)."""
    pairs = zip(is_held.tolist(), assessed.tolist(), strict=True)
    return "".join((HELD if holds else LOST) if is_assessed else NOT_ASSESSED for holds, is_assessed in pairs)


def _digest(*parts: Json) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
