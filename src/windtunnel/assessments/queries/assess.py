"""The pipeline of a query-counted attack: select samples, search, count queries."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.attacks.adapters import Request, adapter_of, call_of
from windtunnel.assessments.attacks.caveats import nothing_attacked, target_is_label
from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.settings import Settings, settle
from windtunnel.assessments.attacks.targets import has_aim, reached_without_attack, target_summary, targets_for
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.queries.library import attack_counted
from windtunnel.assessments.queries.metrics import query_metrics
from windtunnel.assessments.queries.search import (
    Goal,
    Oracle,
    QueryTask,
    SearchAlgorithm,
    State,
    search_images,
    stream_seeds,
)
from windtunnel.assessments.queries.settings import as_attack, library_row, limit_of, params_of, region_of, search_of
from windtunnel.core import scratch
from windtunnel.core.batches import Incidents, batches_of, rows_of_table
from windtunnel.core.contracts import Algorithm, Caveat, Norm, Objective, PerturbationBudget, Semantics, Verdict
from windtunnel.core.distances import distance
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import QueryEntry
from windtunnel.params.entry import Budget
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.registry.plugins import library_of
from windtunnel.runtime.batch_runner import Checkpoint, run_batches

# Images of a unit of work, at least: where few fit into a batch of queries, more wait to enter as others leave.
UNIT = 64
_FEW = 8  # images of a unit where each is a call of its own
_KEPT = ("index", "image", "logits", "queries", "succeeded")

# Attacks the images at the given indices, and gives what became of each, in their order.
Runner = Callable[[QueryTask, Tensor], State]


def assess(name: str, entry: QueryEntry, budget: Budget, subject: Subject) -> AssessmentResult:
    """Attack the samples that the model gets right, each until it breaks, and count every evaluation of the model.

    Keys of robustness_data.pt beside the contract's: `queries` int64 (N,), the check of the clean image (the first, which
    `clean` made) included, 1 for a sample that was not attacked; `attacked` bool (N,); `clean_logits` and
    `perturbed_logits` float32 (N, K); `target_classes` int64 (N,) for a targeted attack. Where an attack failed,
    `perturbed_inputs` is where it stood at the end, or its best attempt within the budget.
    Raises UserError for parameters, a budget or targets that cannot be.
    """
    where = f"queries.{name}"
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "queries")
    aims = targets_for(where, entry.target_classes, subject, name)
    runner, together, region, effective = _plan(where, name, entry, budget, subject, aims)
    attacked = subject.clean_correct & has_aim(subject, aims)
    task = QueryTask(
        images=subject.dataset.inputs,
        logits=subject.clean_logits,
        seeds=stream_seeds(subject.seed, name, subject.dataset.ids),
        goal=Goal(subject.dataset.targets, aims, subject.classifier.criterion),
        budget=region,
        max_queries=limit_of(where, entry, tuple(subject.dataset.inputs.shape[1:]), int(attacked.sum())),
    )
    identity = (entry.model_dump(mode="json"), str(region), None if aims is None else aims.tolist())
    checkpoint, incidents = Checkpoint.of(name, subject, *identity), Incidents()
    results = run_batches(
        batches_of(_hardest_first(attacked.nonzero().flatten(), subject), together, subject.seed, name),
        lambda batch: runner(task, batch.indices),
        name=name,
        checkpoint=checkpoint,
        without=rows_of_table(_untouched(task)),
        incidents=incidents,
    )
    data = _data(subject, task, attacked, aims, results, incidents.lost_samples)
    checkpoint.clear()
    return AssessmentResult(
        name=name,
        semantics=Semantics(
            algorithm,
            region,
            Objective.UNTARGETED if aims is None else Objective.TARGETED,
            target_summary(entry.target_classes),
        ),
        data=data,
        metrics=query_metrics(data),
        caveats=(*_caveats(algorithm, region, entry, data), *incidents.caveats(subject.dataset.ids)),
        kwargs={
            **base_kwargs(subject),
            "batch_size": entry.batch_size,
            **({"max_queries": task.max_queries} if task.max_queries else {}),
            **({"total_queries": entry.total_queries} if entry.total_queries else {}),
        },
        call_kwargs=effective,
        library_package=library_of(entry.library, "attacks").package,
    )


def _plan(
    where: str, name: str, entry: QueryEntry, budget: Budget, subject: Subject, aims: Tensor | None
) -> tuple[Runner, int, PerturbationBudget, dict[str, object]]:
    """(how images are attacked, how many are a unit of work, the region of a success, the effective parameters)."""
    row = library_row(entry)
    if row is None:
        search = search_of(where, entry, tuple(subject.dataset.inputs.shape[1:]))
        capacity = max(1, entry.batch_size // search.width)
        runner = _BatchSearch(search, Oracle(subject.classifier, entry.batch_size), capacity)
        region = region_of(where, entry, search)
        target_classes = {"targets": aims} if aims is not None else {}
        tensors = {"images": subject.dataset.inputs, "labels": subject.dataset.targets, **target_classes}
        params = params_of(where, entry).model_dump(mode="json")
        effective = {**params, "epsilon": region.epsilon, "max_queries": entry.max_queries, **tensors}
        return runner, max(UNIT, capacity), region, effective
    settings = settle(where, row, entry.params, as_attack(entry).budget.over(budget))
    one_by_one = _OneByOne(name, row, settings, subject, aims)
    # Each image is a call of its own: they differ in their seed alone.
    return one_by_one, _FEW, settings.budget, call_of(one_by_one.request(0)).recorded(settings.effective)


@dataclass(frozen=True, slots=True)
class _BatchSearch:
    """One of our algorithms, on the images of a unit: who shares their batches is fixed with them, and so are the last bits."""

    search: SearchAlgorithm
    oracle: Oracle
    capacity: int

    def __call__(self, task: QueryTask, indices: Tensor) -> State:
        states: list[State] = []
        search_images(self.search, self.oracle, task, indices, self.capacity, states.append)
        joined = {key: torch.cat([state[key] for state in states]) for key in _KEPT}
        position = (joined["index"][:, None] == indices[None]).int().argmax(1)  # they are done in any order
        return {key: value[position.argsort()] for key, value in joined.items()}


@dataclass(frozen=True, slots=True)
class _OneByOne:
    """A library's attack: each image is a call of its own, with the image's own seed."""

    name: str
    row: AttackRow
    settings: Settings
    subject: Subject
    aims: Tensor | None

    def __call__(self, task: QueryTask, indices: Tensor) -> State:
        classifier, adapter = self.subject.classifier, adapter_of(self.row.algorithm.library)
        states = [attack_counted(classifier, adapter, self.request(i), task, i) for i in indices.tolist()]
        return {key: torch.cat([state[key] for state in states]) for key in _KEPT}

    def request(self, i: int) -> Request:
        """Return the call for image `i`."""
        seed = derive_seed(self.subject.seed, self.name, self.subject.dataset.ids[i])
        return Request.of(self.row, self.settings, self.subject, self.aims, torch.tensor([i]), seed)


def _hardest_first(indices: Tensor, subject: Subject) -> Tensor:
    """Return `indices` by falling margin of the clean logits: a long search that starts last would end alone, in small batches."""
    logits, targets = subject.clean_logits[indices], subject.dataset.targets[indices]
    return indices[subject.classifier.criterion.margin(logits, targets).argsort(descending=True, stable=True)]


def _untouched(task: QueryTask) -> State:
    """Return the result of images that no worker attacked: where they were, after the one query of the clean image."""
    index = torch.arange(len(task.images))
    is_broken = torch.zeros(len(index), dtype=torch.bool)
    return {
        "index": index,
        "image": task.images,
        "logits": task.logits,
        "queries": torch.ones_like(index),
        "succeeded": is_broken,
    }


def _data(
    subject: Subject, task: QueryTask, attacked: Tensor, aims: Tensor | None, state: State, lost: Tensor
) -> Tensors:
    inputs, logits = scratch.copy_of(subject.dataset.inputs), subject.clean_logits.clone()
    queries = torch.ones(len(inputs), dtype=torch.int64)
    predictions = subject.clean_predictions.clone()
    # A sample that is wrong already is a success without an attack, as for `attacks`.
    succeeded = reached_without_attack(subject, aims)
    if state:
        indices = state["index"]
        inputs[indices], logits[indices], queries[indices] = state["image"], state["logits"], state["queries"]
        succeeded[indices] = state["succeeded"]
        labels = subject.dataset.targets[indices]
        predictions[indices] = subject.classifier.criterion.predict(state["logits"], labels)
    attacked = attacked.clone()
    attacked[lost] = False
    verdicts = torch.where(succeeded, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))
    verdicts[lost] = int(Verdict.ERROR)
    data: Tensors = {
        **base_data(subject, verdicts),
        "perturbed_inputs": inputs,
        "perturbed_predictions": predictions,
        "perturbation_distance": distance(task.budget.norm, inputs, subject.dataset.inputs),
        "queries": queries,
        "attacked": attacked,
        "clean_logits": subject.clean_logits,
        "perturbed_logits": logits,
    }
    return data if aims is None else {**data, "target_classes": aims}


def _caveats(algorithm: Algorithm, region: PerturbationBudget, entry: QueryEntry, data: Tensors) -> Iterator[Caveat]:
    if region.epsilon is None:
        what = "the number of changed values" if region.norm is Norm.L0 else f"the {region.norm} distance"
        yield Caveat(
            "no_norm_bound",
            f"{algorithm.name} limits queries, not {what}. A success counts towards a budget only if its example lies "
            f"within it.",
        )
    yield from nothing_attacked(data)
    if entry.library != "windtunnel":
        yield Caveat(
            "stopped_at_first_success",
            "Each image was attacked alone, up to the first query that succeeded within the budget: distances are of "
            "that example, not of the best one that the library would find with more queries.",
        )
    yield from target_is_label(data)
