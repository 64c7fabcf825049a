"""The pipeline of an empirical attack: who is attacked, in which batches, and what the results are worth.

One attack, an attack with restarts and an ensemble are the same thing: runs one after another, each on the samples
that those before it did not break.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.attacks.adapters import CountedModel, Request, adapter_of, call_of, perturb
from windtunnel.assessments.attacks.calls import Invoke, invoker_of
from windtunnel.assessments.attacks.caveats import caveats_of
from windtunnel.assessments.attacks.evaluate import Evaluation, evaluate
from windtunnel.assessments.attacks.metrics import attack_metrics, transfer_metrics
from windtunnel.assessments.attacks.plan import Run, plan_of
from windtunnel.assessments.attacks.survivors import Prior, entry_digest, prior_of
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.assessments.attacks.targets import has_aim, reached_without_attack, target_summary, targets_for
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.core.artifacts import Artifacts, AssessmentResult, Tensors, base_data, base_kwargs
from windtunnel.core.batches import Batch, Checkpoint, batches_of, each_batch
from windtunnel.core.classifier import Classifier, argmax_or_invalid
from windtunnel.core.contracts import Json, Objective, PerturbationBudget, Semantics, Verdict
from windtunnel.core.files import plain_json
from windtunnel.core.plugins import library_of
from windtunnel.core.seeds import seeded
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

NOBODY, MISCLASSIFIED = -1, -2  # codes of `broken_by` beside the index of a run


def assess(
    name: str,
    entry: AttackEntry,
    budget: Budget,
    subject: Subject,
    prior: Mapping[str, Artifacts] | None = None,
    others: Mapping[str, Classifier] | None = None,
) -> AssessmentResult:
    """Attack the samples that the model gets right; the others count as not robust without being attacked.

    prior: the results that `entry.on.survivors_of` names, as they are on disk; samples they broke within this budget are
    not attacked again.
    others: the models of `entry.transfer_to`, on which the finished examples are tried.

    Keys of robustness_data.pt beside the contract's: `perturbed_logits` float32 (N, K); `attacked` bool (N,);
    `broken_by` int64 (N,), index into kwargs.runs, -1 for nobody, -2 for samples misclassified without perturbation;
    `forward_passes`, `backward_passes` float32 (N,), the mean over the sample's batch; `target_classes` int64 (N,) for
    a targeted attack; `transfer_predictions`, `transfer_clean_predictions` int64 (M, N) of M others. A sample that was
    not attacked keeps its clean input, at distance 0, or the example of `prior`.
    Raises UserError where the prior results are missing, or for targets that cannot be.
    """
    where = f"attacks.{name}"
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "attacks")
    effective = entry.budget.over(budget)
    aims = targets_for(where, entry.target_classes, subject, name)
    runs = plan_of(where, entry, ROWS[algorithm.key], effective)
    if len(keys := {run.row.algorithm.key for run in runs}) == 1:
        algorithm = replace(algorithm, randomness=runs[0].row.randomness(runs[0].settings.effective))
    before = prior_of(where, entry, subject, effective, prior or {})
    state = _State.start(subject, aims, before)
    evaluated_budget = runs[0].settings.budget if len(runs) == 1 else effective
    identity: list[object] = [
        entry.model_dump(mode="json"),
        str(effective),
        subject.dataset.digest(),
        subject.classifier.digest,
    ]
    identity += [subject.seed, str(subject.classifier.device), before.digest()]
    kept = [Checkpoint(f"{name}.{index}", subject.resolved, identity) for index in range(len(runs))]
    invoke = invoker_of(where, entry.invoker)
    calls: list[dict[str, Json]] = []
    for index, run in enumerate(runs):
        living = (state.attacked & ~state.succeeded).nonzero().flatten()
        request = _requests(run, subject, aims, invoke)
        batches = batches_of(living, entry.batch_size, subject.seed, f"{name}.{run.name}.{index}")
        calls.append(_first_call(run, batches, request))
        _run(f"{name}.{run.name}", index, run, batches, request, subject, aims, state, kept[index])
    for checkpoint in kept:
        checkpoint.clear()
    data = _data(subject, state, aims)
    if others:
        examples, clean = state.perturbed, subject.dataset.inputs
        data["transfer_predictions"] = torch.stack([other.predict(examples) for other in others.values()])
        data["transfer_clean_predictions"] = torch.stack([other.predict(clean) for other in others.values()])
    region = evaluated_budget if len(keys) == 1 else _region(effective)
    targeted = aims is not None
    return AssessmentResult(
        name=name,
        semantics=Semantics(
            algorithm,
            region,
            Objective.TARGETED if targeted else Objective.UNTARGETED,
            target_summary(entry.target_classes),
        ),
        data=data,
        metrics={
            **attack_metrics(data, effective.norm, algorithm, subject.dataset.num_classes),
            **(transfer_metrics(data, list(others)) if others else {}),
        },
        caveats=tuple(caveats_of(algorithm, runs, state.beyond, state.repaired, data, subject, before)),
        kwargs={
            **base_kwargs(subject),
            "batch_size": entry.batch_size,
            "runs": [run.name for run in runs],
            "restarts": entry.restarts,
            **({"invoker": entry.invoker} if entry.invoker else {}),
            **({"transfer_to": {key: other.digest for key, other in others.items()}} if others else {}),
            **({"survivors_of": {key: prior[key].digest() for key in before.by}} if prior and before.by else {}),
        },
        call_kwargs=calls[0] if len(calls) == 1 else {f"{i} {runs[i].name}": call for i, call in enumerate(calls)},
        library_package=library_of(entry.library, "attacks").package,
        provenance={
            "attack_libraries": sorted({run.row.algorithm.library for run in runs}),
            "entry": entry_digest(entry, budget),
        },
        draws=sum(int(str(run.settings.effective.get("n_restarts", 1))) for run in runs),
    )


@dataclass
class _State:
    """What is known so far of N samples; every run updates the rows it attacked."""

    attacked: Tensor
    succeeded: Tensor
    perturbed: Tensor
    logits: Tensor
    distances: Tensor
    broken_by: Tensor
    forwards: Tensor
    backwards: Tensor
    beyond: Tensor
    repaired: Tensor
    reached: Tensor
    tried: Tensor

    @classmethod
    def start(cls, subject: Subject, aims: Tensor | None, before: Prior) -> _State:
        n = len(subject.dataset)
        attacked = subject.clean_correct & ~before.broken & has_aim(subject, aims)
        flags = [torch.zeros(n, dtype=torch.bool) for _ in range(5)]
        return cls(
            attacked=attacked,
            succeeded=before.broken | reached_without_attack(subject, aims),
            perturbed=torch.where(before.broken.view(-1, 1, 1, 1), before.perturbed, subject.dataset.inputs),
            logits=torch.where(before.broken[:, None], before.logits, subject.clean_logits),
            distances=torch.where(before.broken, before.distances, 0.0),
            broken_by=torch.where(subject.clean_correct, NOBODY, MISCLASSIFIED),
            forwards=torch.zeros(n),
            backwards=torch.zeros(n),
            beyond=flags[0],
            repaired=flags[1],
            reached=flags[2],
            tried=flags[3],
        )

    def update(self, index: int, rows: Tensor, found: Evaluation, forwards: Tensor, backwards: Tensor) -> None:
        """Take over what is new: the first try of a sample, a success, or a nearer example that meets the objective."""
        closer = found.reached & (~self.reached[rows] | (found.distances < self.distances[rows]))
        better = ~self.tried[rows] | found.succeeded | closer
        chosen = rows[better]
        self.perturbed[chosen] = found.perturbed[better]
        self.logits[chosen] = found.logits[better]
        self.distances[chosen] = found.distances[better]
        self.broken_by[rows[found.succeeded]] = index
        self.succeeded[rows] |= found.succeeded
        self.reached[rows] |= found.reached
        self.beyond[rows] |= found.beyond
        self.repaired[rows] |= found.repaired
        self.tried[rows] = True
        self.forwards[rows] += forwards
        self.backwards[rows] += backwards


def _requests(run: Run, subject: Subject, aims: Tensor | None, invoke: Invoke | None) -> Callable[[Batch], Request]:
    """How each batch of a run is asked of its library."""
    data, device = subject.dataset, subject.classifier.device

    def request(batch: Batch) -> Request:
        return Request(
            row=run.row,
            arguments=run.settings.arguments,
            budget=run.settings.budget,
            inputs=data.inputs[batch.indices].to(device).contiguous(),
            labels=data.targets[batch.indices].to(device),
            aims=None if aims is None else aims[batch.indices].to(device),
            pool=(data.inputs, data.targets),
            num_classes=subject.classifier.num_classes,
            seed=batch.seed,
            invoke=invoke,
        )

    return request


def _first_call(run: Run, batches: Sequence[Batch], request: Callable[[Batch], Request]) -> dict[str, Json]:
    """What the library was called with for the first batch; the others differ in their seed and their number of rows."""
    effective = run.settings.effective
    summary = plain_json(call_of(request(batches[0])).recorded(effective) if batches else effective)
    assert isinstance(summary, dict)
    return summary


def _run(
    name: str,
    index: int,
    run: Run,
    batches: Sequence[Batch],
    request: Callable[[Batch], Request],
    subject: Subject,
    aims: Tensor | None,
    state: _State,
    checkpoint: Checkpoint,
) -> None:
    data, classifier = subject.dataset, subject.classifier
    adapter = adapter_of(run.row.algorithm.library)

    def work(batch: Batch) -> dict[str, Tensor]:
        counted = CountedModel(classifier.module)
        with seeded(batch.seed):
            perturbed = perturb(request(batch), counted, adapter).detach().float().cpu()
        n = len(batch.indices)
        counts = {"forwards": counted.passes.forwards / n, "backwards": counted.passes.backwards / n}
        return {"perturbed": perturbed, **{key: torch.full((n,), value) for key, value in counts.items()}}

    for batch, found in each_batch(batches, work, name=name, checkpoint=checkpoint):
        rows = batch.indices
        wanted = None if aims is None else aims[rows]
        judgement = evaluate(
            classifier, run.row, run.settings.budget, data.inputs[rows], found["perturbed"], data.targets[rows], wanted
        )
        state.update(index, rows, judgement, found["forwards"], found["backwards"])


def _data(subject: Subject, state: _State, aims: Tensor | None) -> Tensors:
    predictions = argmax_or_invalid(state.logits)
    data: Tensors = {
        **base_data(subject, torch.where(state.succeeded, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))),
        "perturbed_inputs": state.perturbed,
        "perturbed_predictions": predictions,
        "perturbation_distance": state.distances,
        "perturbed_logits": state.logits,
        "clean_logits": subject.clean_logits,
        "attacked": state.attacked,
        "broken_by": state.broken_by,
        "forward_passes": state.forwards,
        "backward_passes": state.backwards,
    }
    if aims is not None:
        data["target_classes"] = aims
    return data


def _region(budget: PerturbationBudget) -> PerturbationBudget:
    return PerturbationBudget(budget.norm, budget.epsilon)
