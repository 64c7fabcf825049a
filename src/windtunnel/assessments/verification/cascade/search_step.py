"""The step that searches: branch and bound of our own, a group of samples at a time."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.session import WEAKER, Searcher, groups, network_of
from windtunnel.assessments.verification.cascade.bound_step import bound
from windtunnel.assessments.verification.cascade.ledger import Ledger
from windtunnel.assessments.verification.cascade.search_radii import search_radii
from windtunnel.assessments.verification.cascade.step import Step, Trial
from windtunnel.assessments.verification.cascade.task import VerificationTask
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsification.falsifier import ROUNDING
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.machine import time_limit
from windtunnel.runtime.batch_runner import each_batch

_FLAGS = ("verified", "exhausted", "late", "undecidable", "short")


def search_or_bound(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Search; what has no bound for an operator here gives way to the next method down, as among the bound methods."""
    try:
        search(step, ledger, task)
    except IncompatibleError as error:
        undecided = tuple(task.subject.dataset.ids[i] for i in ledger.undecided.tolist())
        ledger.caveats.append(Caveat("weaker_method", f"{WEAKER} was used instead of {step}: {error}.", undecided))
        bound(WEAKER, ledger, task)


def search(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Let branch and bound decide the undecided samples until the task's deadline.

    Raises IncompatibleError for a model that it has no bounds for, OutOfTimeError where none is left to take it apart.
    """
    data = task.subject.dataset
    with time_limit(task.deadline):
        network = network_of(task.subject.classifier)
    params = task.entry.branch_and_bound
    indices, seconds_left = ledger.undecided, ledger.seconds_left(ledger.undecided, task.entry.timeout)
    seconds = torch.full((len(data),), torch.inf)
    seconds[indices] = seconds_left.to(seconds)
    searcher = Searcher(task.subject, task.norm, task.lead(ROUNDING), params, seconds, Deadline(task.deadline))
    work = _Decide(searcher, task.epsilon)
    parts = groups(indices, network.device)
    exhausted, undecidable, short = list[int](), list[int](), list[int]()
    for batch, result in each_batch(
        [Batch(number, part, 0) for number, part in enumerate(parts)],
        work,
        name=f"{task.name} {step}",
        checkpoint=task.checkpoint(ledger, step, indices.tolist()),
        without=work.nothing,
        incidents=task.bounder.incidents,
    ):
        members = batch.indices
        _enter(result, members, step, ledger)
        ledger.timed_out[members[result["late"]]] = True
        exhausted += members[result["exhausted"] & ~result["late"]].tolist()
        undecidable += members[result["undecidable"]].tolist()
        short += members[result["short"]].tolist()
        for index in members[result["failed"]].tolist():
            ledger.fail(index, step)
    for code, text, samples in (
        ("work_limit", f"{step} ended at its limit of {params.domains} subdomains for a sample", exhausted),
        ("undecided", f"{step}: what is left cannot be split further, or a class draws level", undecidable),
    ):
        if samples:
            ids = tuple(data.ids[i] for i in samples)
            ledger.caveats.append(Caveat(code, f"{text}: {len(samples)} samples are undecided by it.", ids))
    if short:
        task.bounder.fell_back_to(step, WEAKER, "out of memory on one sample", short)
        bound(WEAKER, ledger, task, torch.tensor(short))


@dataclass(frozen=True, slots=True)
class _Decide:
    """A unit of work: branch and bound of a group of samples."""

    searcher: Searcher
    epsilon: float

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        results, n = self.nothing(batch), len(batch.indices)
        results["failed"][:] = False
        session, every = self.searcher.session(batch.indices), torch.arange(n)
        region = session.region(every, self.epsilon)
        decided = session.decide(every, region)
        if decided is None:
            for key in ("short",) if session.short else ("late", "exhausted"):
                results[key][:] = True
            return results
        for i, point in decided.examples.items():
            results["examples"][i] = point.float().cpu().view(results["examples"].shape[1:])
        broken = results["examples"].flatten(1).isfinite().all(1)
        bounds = decided.bounds.amin(1).cpu()
        return {
            **results,
            "margins": torch.where(bounds.isfinite(), bounds, torch.nan).float(),
            "verified": decided.verified.cpu(),
            "domains": decided.domains.cpu(),
            "exhausted": decided.exhausted.cpu(),
            "late": decided.exhausted.cpu() & session.late,
            "undecidable": ~(decided.verified | decided.exhausted).cpu() & ~broken,
            "seconds": torch.full((n,), (time.monotonic() - session.started) / n),
        }

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """Return an undecided result for a group that no worker finished."""
        n, inputs = len(batch.indices), self.searcher.subject.dataset.inputs
        flags = {key: torch.zeros(n, dtype=torch.bool) for key in _FLAGS}
        return {
            **flags,
            "failed": torch.ones(n, dtype=torch.bool),
            "margins": torch.full((n,), torch.nan),
            "examples": torch.full((n, *inputs.shape[1:]), torch.nan),
            "domains": torch.zeros(n, dtype=torch.int64),
            "seconds": torch.zeros(n),
        }


def _enter(results: Mapping[str, Tensor], indices: Tensor, step: str, ledger: Ledger) -> None:
    no_bounds = torch.full((len(indices), ledger.lower.shape[1]), torch.nan)
    ledger.bound(indices, results["margins"], no_bounds, no_bounds)
    ledger.verify(indices[results["verified"]], step)
    broken = results["examples"].flatten(1).isfinite().all(1)
    if broken.any():
        ledger.falsify(indices[broken], results["examples"][broken], step)
    ledger.subdomains[indices] += results["domains"]
    ledger.seconds[indices] += results["seconds"]


def _attempt(step: str, trial: Trial) -> None:
    with time_limit(trial.bounder.deadline):
        network_of(trial.canonical.subject.classifier)


def _call(step: str, task: VerificationTask) -> Mapping[str, object]:
    data, limits = task.subject.dataset, task.entry.branch_and_bound.model_dump(mode="json")
    return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}


_OPTIONS = frozenset({"timeout", "batch_size"})  # a batch of bounds where it falls back to them
SEARCH = Step(search_or_bound, _call, ROUNDING, _attempt, radii=search_radii, options=_OPTIONS)
