"""The step that searches: branch and bound of our own, a group of samples at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.session import WEAKER, Searcher, groups, network_of
from windtunnel.assessments.verification.cascade.bound_step import bound
from windtunnel.assessments.verification.cascade.ledger import Ledger
from windtunnel.assessments.verification.cascade.search_radii import search_radii
from windtunnel.assessments.verification.cascade.step import Step, Trial, step_of
from windtunnel.assessments.verification.cascade.task import Task
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsification.falsifier import ROUNDING
from windtunnel.assessments.verification.marabou.worker import corner
from windtunnel.assessments.verification.regions import Region
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.limits import time_limit
from windtunnel.runtime.batch_runner import each_batch

_MOST_INNER = 4096  # units: a solver decides nothing larger, and bounds are kept of every sample
_FLAGS = ("verified", "exhausted", "late", "undecidable", "short")


def search_or_bound(step: str, ledger: Ledger, task: Task) -> None:
    """Search; what has no bound for an operator here gives way to the next method down, as among the bound methods."""
    try:
        search(step, ledger, task)
    except IncompatibleError as error:
        undecided = tuple(task.subject.dataset.ids[i] for i in ledger.undecided.tolist())
        ledger.caveats.append(Caveat("weaker_method", f"{WEAKER} was used instead of {step}: {error}.", undecided))
        bound(WEAKER, ledger, task)


def search(step: str, ledger: Ledger, task: Task) -> None:
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
    units = sum(network.sizes) if _taken_later(step, task) else 0
    searcher = Searcher(task.subject, task.norm, task.lead(ROUNDING), params, seconds, Deadline(task.deadline))
    work = _Decide(searcher, task.epsilon, units if units <= _MOST_INNER else 0)
    parts = groups(indices, network.device)
    exhausted, undecidable, short = list[int](), list[int](), list[int]()
    for batch, result in each_batch(
        [Batch(number, part, 0) for number, part in enumerate(parts)], work, name=f"{task.name} {step}",
        checkpoint=task.checkpoint(ledger, step, indices.tolist()), without=work.nothing,
        incidents=task.bounder.incidents,
    ):  # fmt: skip
        members = batch.indices
        _enter(result, members, step, ledger, network.sizes)
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


def _taken_later(step: str, task: Task) -> bool:
    """Return whether a step after this one goes on from bounds of the inputs of activations."""
    later = task.steps[task.steps.index(step) + 1 :] if step in task.steps else ()
    return any(step_of(name).takes_inner for name in later)


@dataclass(frozen=True, slots=True)
class _Decide:
    """A unit of work: branch and bound of a group of samples.

    inner: how many units' bounds it gives, all of the network's or 0 for none.
    """

    searcher: Searcher
    epsilon: float
    inner: int

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
        if self.inner:
            _look_inside(results["inner"], decided.inner, self.searcher.network(), region)
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
            "inner": torch.full((n, 4, self.inner), torch.nan),
            "seconds": torch.zeros(n),
        }


def _look_inside(
    into: Tensor, inner: Mapping[int, list[tuple[Tensor, Tensor]]], network: Network, region: Region
) -> None:
    """Write bounds of the inputs of all activations, and those inputs at two points by which others know the layers, as `Ledger.inner`."""
    for i, layers in inner.items():
        far = corner(*(ends[i].cpu().numpy() for ends in (region.low, region.high)))
        points = torch.stack([region.centre[i], torch.from_numpy(far).to(region.centre)])
        values = network.inputs_of_activations(points.view(-1, *network.input_shape)).cpu()
        into[i] = torch.stack([*(torch.cat(ends) for ends in zip(*layers, strict=True)), *values]).float()


def _enter(results: Mapping[str, Tensor], indices: Tensor, step: str, ledger: Ledger, sizes: list[int]) -> None:
    no_bounds = torch.full((len(indices), ledger.lower.shape[1]), torch.nan)
    ledger.bound(indices, results["margins"], no_bounds, no_bounds)
    ledger.verify(indices[results["verified"]], step)
    broken = results["examples"].flatten(1).isfinite().all(1)
    if broken.any():
        ledger.falsify(indices[broken], results["examples"][broken], step)
    ledger.subdomains[indices] += results["domains"]
    undecided = set(ledger.undecided.tolist())
    for index, inner in zip(indices.tolist(), results["inner"], strict=True):
        if index in undecided and inner.numel() and bool(inner.isfinite().all()):
            ledger.inner[index] = inner.split(sizes, 1)
    ledger.seconds[indices] += results["seconds"]


def _attempt(step: str, trial: Trial) -> None:
    with time_limit(trial.bounder.deadline):
        network_of(trial.canonical.subject.classifier)


def _call(step: str, task: Task) -> Mapping[str, object]:
    data, limits = task.subject.dataset, task.entry.branch_and_bound.model_dump(mode="json")
    return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}


_OPTIONS = frozenset({"timeout", "batch_size"})  # a batch of bounds where it falls back to them
SEARCH = Step(search_or_bound, _call, ROUNDING, _attempt, radii=search_radii, options=_OPTIONS)
