"""Every metric of a run recomputed from the tensors on disk: a number without its evidence is found here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from windtunnel.assessments.attacks.metrics import attack_metrics, transfer_metrics
from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.assessments.clean.subject import current_subject
from windtunnel.assessments.corruptions.metrics import Interval, SuiteData, accuracy_metrics, suite_metrics
from windtunnel.assessments.corruptions.reference import reference_of
from windtunnel.assessments.latent.assess import metrics_from as latent_metrics
from windtunnel.assessments.queries.metrics import query_metrics
from windtunnel.assessments.sweeps.curve import Sweep, sweep_metrics
from windtunnel.assessments.verification.assess import verification_metrics
from windtunnel.assessments.verification.smoothing import smoothing_metrics
from windtunnel.core.contracts import Algorithm, Json
from windtunnel.core.sample_states import SampleState, state_counts
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.evaluation.summary.slices import MEMBERS, slice_metrics, slices_of
from windtunnel.evaluation.summary.summarise import class_metrics
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.corruptions import CorruptionEntry
from windtunnel.params.entry import Entry
from windtunnel.params.latent import LatentEntry
from windtunnel.params.schema import Params
from windtunnel.params.sweeps import SweepEntry
from windtunnel.params.verification import Smoothing, VerificationEntry
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import corruption_pairs, names_in
from windtunnel.records.regions import without_attack
from windtunnel.records.sandwich import layers_of

TOLERANCE = 1e-9  # relative: the order of a sum may differ
# Metrics whose evidence is not this assessment's: of the generators' stage, and tables over further classifiers.
_ELSEWHERE = ("frechet_", "models", "correlations", "headline", "checks_", "status", "hard_failures")

Recomputed: TypeAlias = dict[str, Json]


def differences(stated: Mapping[str, Json], recomputed: Mapping[str, Json]) -> Iterator[str]:
    """Yield a line for each metric that the tensors do not give, or give otherwise."""
    for key, value in stated.items():
        if key.startswith(_ELSEWHERE):
            continue
        if key not in recomputed:
            yield f"{key}: nothing recomputes it"
        elif not _same(value, recomputed[key]):
            yield f"{key}: {str(value)[:60]} is stated, {str(recomputed[key])[:60]} comes out of the tensors"


def of_entry(family: str, entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    """Return the metrics of one entry of params.yaml, from its robustness_data.pt."""
    recomputed = _FAMILIES[family](entry, artifacts, algorithm, params)
    return without_attack(recomputed) if entry.corrupted_by else recomputed


def of_clean(params: Params) -> Recomputed:
    """Return the metrics of the clean evaluation, from its logits."""
    return assess_clean(params.clean, current_subject(params.device, params.seed, params.model)).metrics


def of_corruption(entry: CorruptionEntry, artifacts: Artifacts) -> Recomputed:
    """Return the metrics of one corruption at one severity."""
    predictions, clean, targets = (
        artifacts.tensor(key) for key in ("perturbed_predictions", "clean_predictions", "targets")
    )
    return accuracy_metrics(predictions, clean, targets, Interval(entry.ci_method, entry.ci_level))


def of_summary(artifacts: Artifacts) -> Recomputed:
    """Return the worst-case rates over all assessments (the summary, and the report as data), and every budget's sandwich."""
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    n = len(right)
    found: Recomputed = {"n_samples": n, **binomial_rate(int(right.sum()), n).metrics("clean_accuracy")}
    states, drawn = artifacts.tensor("sample_states"), artifacts.tensor("drawn")
    found |= _layer(states, drawn, examined=True)
    of = drawn if drawn.any() else torch.ones_like(drawn)
    targets, names = artifacts.tensor("targets")[of], artifacts.class_names
    found |= class_metrics("worst_case", (states >= SampleState.CERTIFIED.code)[of], targets, names)
    certified = (states == SampleState.CERTIFIED.code)[of]
    found |= class_metrics("certified", certified, targets, names, "clopper_pearson")
    if slices := slices_of(artifacts):
        members, examined = artifacts.tensor(MEMBERS), "certified_accuracy" in artifacts.metrics
        found |= slice_metrics(slices, members, states, drawn, examined=examined)
    if "sandwich_states" in artifacts.data:
        layers = layers_of(artifacts.metrics)
        masks = zip(artifacts.tensor("sandwich_states"), artifacts.tensor("sandwich_drawn"), strict=True)
        # Norm, epsilon, the draws and who set the ends are facts of the params; the rates and states are of the tensors.
        found["sandwich"] = [
            {**layer.model_dump(mode="json"), **_layer(*mask, bool(layer.n_examined)), "states": state_counts(mask[0])}
            for layer, mask in zip(layers, masks, strict=True)
        ]
    return found


def of_sanity(artifacts: Artifacts) -> Recomputed:
    """Return the clean accuracy of the sanity stage; its other metrics count the checks of kwargs."""
    right = artifacts.tensor("clean_predictions") == artifacts.tensor("targets")
    return {**binomial_rate(int(right.sum()), len(right)).metrics("clean_accuracy")}


def _layer(states: Tensor, drawn: Tensor, examined: bool) -> Recomputed:
    """Return the rates of one budget, from the states int64 (N,) and the union of the draws bool (N,)."""
    certified, n = states == SampleState.CERTIFIED.code, len(states)
    held = certified | (states == SampleState.SURVIVED.code)
    found: Recomputed = {}
    if drawn.any():
        found |= binomial_rate(int(held[drawn].sum()), int(drawn.sum())).metrics("worst_case_accuracy")
    if examined:
        of = certified[drawn] if drawn.any() else certified
        for name, mask in (("certified_accuracy", of), ("certified_accuracy_all", certified)):
            found |= binomial_rate(int(mask.sum()), len(mask), method="clopper_pearson").metrics(name)
    found["robust_accuracy_at_most"] = int((states >= SampleState.CERTIFIED.code).sum()) / n
    return found


def _attack(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    assert isinstance(entry, AttackEntry)
    norm, classes = entry.budget.over(params.budget).norm, len(artifacts.class_names)
    found = attack_metrics(artifacts.data, norm, algorithm, classes)
    return {**found, **(transfer_metrics(artifacts.data, list(entry.transfer_to)) if entry.transfer_to else {})}


def _query(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    return query_metrics(artifacts.data)


def _sweep(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    assert isinstance(entry, SweepEntry)
    sweep = Sweep(
        epsilons=artifacts.tensor("epsilons"),
        predictions=artifacts.tensor("sweep_predictions"),
        targets=artifacts.tensor("targets"),
        clean_confidence=artifacts.tensor("clean_confidence"),
        critical_epsilon=artifacts.tensor("critical_epsilon"),
        num_classes=len(artifacts.class_names),
    )
    return sweep_metrics(sweep, entry.thresholds.robust, entry.thresholds.moderately_fragile)


def _verification(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    assert isinstance(entry, VerificationEntry)
    if "smoothed_predictions" in artifacts.data:
        return smoothing_metrics(artifacts.data, Smoothing.model_validate(entry.params))
    names = list(names_in(artifacts.metadata.kwargs, "decided_by_names"))
    of_transformation = artifacts.metadata.kwargs.extra.get("largest_radius")
    largest = entry.radius.max if entry.radius else of_transformation
    assert largest is None or isinstance(largest, int | float)
    return verification_metrics(artifacts.data, names, largest)


def _corruption(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    assert isinstance(entry, CorruptionEntry)
    pairs = list(corruption_pairs(artifacts.metadata.kwargs))
    resized = artifacts.data.get("resized_predictions")
    suite = SuiteData(
        pairs=pairs,
        predictions=artifacts.tensor("corruption_predictions"),
        clean=artifacts.tensor("clean_predictions"),
        quantised=artifacts.tensor("quantised_predictions"),
        resized=resized if isinstance(resized, Tensor) else None,
        targets=artifacts.tensor("targets"),
        minimal=artifacts.tensor("minimal_severity"),
        library=entry.library,
    )
    reference = reference_of(f"corruptions.{artifacts.name}", entry, pairs, _same_samples(artifacts, params).dataset)
    return suite_metrics(suite, Interval(entry.ci_method, entry.ci_level), reference)


def _latent(entry: Entry, artifacts: Artifacts, algorithm: Algorithm, params: Params) -> Recomputed:
    assert isinstance(entry, LatentEntry)
    return latent_metrics(entry, artifacts.data, _same_samples(artifacts, params))


def _same_samples(artifacts: Artifacts, params: Params) -> Subject:
    subject = current_subject(params.device, params.seed, params.model)
    place = {name: i for i, name in enumerate(subject.dataset.ids)}
    return subject.subset(torch.tensor([place[name] for name in artifacts.sample_names], dtype=torch.int64))


_FAMILIES: dict[str, Callable[[Entry, Artifacts, Algorithm, Params], Recomputed]] = {
    "attacks": _attack,
    "queries": _query,
    "sweeps": _sweep,
    "verification": _verification,
    "corruptions": _corruption,
    "latent": _latent,
}


def _same(stated: Json, found: Json) -> bool:
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        return stated.keys() == found.keys() and all(_same(stated[key], found[key]) for key in stated)
    if isinstance(stated, list | tuple) and isinstance(found, list | tuple):
        return len(stated) == len(found) and all(_same(a, b) for a, b in zip(stated, found, strict=True))
    if isinstance(stated, float | int) and isinstance(found, float | int):
        return abs(stated - found) <= TOLERANCE * max(1.0, abs(stated))
    return stated == found
