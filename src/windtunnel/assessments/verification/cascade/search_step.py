"""The step that searches: branch and bound of our own, a group of samples at a time, for verdicts and for certified radii.

A radius is searched of each sample upwards from what is proved, below what is broken: what holds inside the network in a ball holds in
every smaller one, and a counter-example breaks every larger one.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.session import WEAKER, Inner, Searcher, Session, groups
from windtunnel.assessments.verification.cascade.bound_step import bound
from windtunnel.assessments.verification.cascade.radius import RadiusBounds, certified_radius, raise_radius
from windtunnel.assessments.verification.cascade.step import Step, Trial
from windtunnel.assessments.verification.cascade.steps import proves
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsifier import ROUNDING
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Caveat
from windtunnel.core.distances import distance
from windtunnel.core.errors import IncompatibleError, OutOfTimeError
from windtunnel.core.machine import time_limit
from windtunnel.params.verification import Radius


def search_radii(step: str, radii: RadiusBounds, ledger: Ledger, task: VerificationTask) -> Tensor:
    """Raise the lower ends of `radii` for correctly classified samples; return (N,) bool, whose search was not finished.

    What has no bound for an operator here, or too little memory, gives way to the next method down, as where verdicts are sought.
    """
    right = task.subject.clean_correct
    try:
        unfinished, weaker = _search(step, radii, ledger, task)
    except IncompatibleError as error:
        ledger.caveats.append(Caveat("weaker_method", f"{WEAKER} searched radii instead of {step}: {error}."))
        unfinished, weaker = torch.zeros_like(right), right
    radius = task.entry.radius
    assert radius is not None
    if weaker.any():
        low = torch.where(weaker, radii.holds, -1.0)
        certified_radius(radii.certified_by(proves(WEAKER, task)), low, radius.max, radius.tolerance)
        unfinished |= weaker & (task.time_left <= 0)
    return unfinished


def _search(step: str, radii: RadiusBounds, ledger: Ledger, task: VerificationTask) -> tuple[Tensor, Tensor]:
    """(whose search was not finished, for whom memory was too short), both (N,) bool."""
    subject, radius = task.subject, task.entry.radius
    assert radius is not None
    open_ = subject.clean_correct & radii.unsettled(radius.max, radius.tolerance)
    unfinished, short = torch.zeros_like(open_), torch.zeros_like(open_)
    seconds = torch.full(open_.shape, torch.inf if task.entry.timeout is None else task.entry.timeout)
    try:
        work = _Radii(_searcher(task, seconds), radius, radii)
    except OutOfTimeError:
        return open_, short
    batches = groups(open_.nonzero().flatten(), subject.classifier.device)
    checkpoint = task.checkpoint(step, "radius", radii.holds.tolist(), radii.broken.tolist())
    for batch, result in task.results(batches, work, "radius", checkpoint):
        members = batch.indices
        radii.holds[members], radii.broken[members] = result["holds"], result["broken"]
        unfinished[members], short[members] = result["unfinished"], result["short"]
    open_ &= radii.unsettled(radius.max, radius.tolerance) & ~unfinished & ~short
    remaining = open_.nonzero().flatten().tolist()
    if remaining:
        text = (
            f"{len(remaining)} samples: larger radii may hold: the certified one and the nearest counter-example known, if any, are "
            f"further apart than the tolerance ({step} was limited to {work.searcher.params.domains} subdomains an epsilon)."
        )
        ledger.caveats.append(Caveat("radius_open", text, tuple(subject.dataset.ids[i] for i in remaining)))
    if short.any():
        task.bounder.fell_back_to(step, WEAKER, "out of memory on one sample", short.nonzero().flatten().tolist())
    return unfinished, short


@dataclass(frozen=True, slots=True)
class _Radii:
    """A unit of work: the radii of a group of samples, from the `radii` of all N."""

    searcher: Searcher
    radius: Radius
    radii: RadiusBounds

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        radii = RadiusBounds(self.radii.holds[batch.indices], self.radii.broken[batch.indices])
        session = self.searcher.session(batch.indices)
        raise_radius(_Probe(session, radii, {}), radii, self.radius.max, self.radius.tolerance)
        unfinished = radii.unsettled(self.radius.max, self.radius.tolerance) & session.late
        short = torch.full((len(batch.indices),), session.short)
        return {"holds": radii.holds, "broken": radii.broken, "unfinished": unfinished, "short": short}

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """Return the previous bounds for a group that no worker finished."""
        no = torch.zeros(len(batch.indices), dtype=torch.bool)
        radii = {"holds": self.radii.holds[batch.indices], "broken": self.radii.broken[batch.indices]}
        return {**radii, "unfinished": ~no, "short": no}


@dataclass(frozen=True, slots=True)
class _Probe:
    """Return whether branch and bound verifies a group's samples at epsilons of their own; enters in `radii` what it learns besides.

    inside: what holds inside the network in the ball that was not verified last, by sample: the next are smaller.
    """

    session: Session
    radii: RadiusBounds
    inside: dict[int, Inner]

    def __call__(self, at: Tensor, epsilons: Tensor) -> Tensor:
        """Decide a group as `radius.Decide` describes; `at` are places in the group."""
        places = at.tolist()
        if self.session.short or self.session.expired():
            return torch.zeros(len(at), dtype=torch.bool)
        larger = {k: self.inside[i] for k, i in enumerate(places) if i in self.inside}
        region = self.session.region(at, epsilons)
        decided = self.session.decide(at, region, larger)
        if decided is None:
            return torch.zeros(len(at), dtype=torch.bool)
        for k, i in enumerate(places):
            if not decided.verified[k] and k in decided.inner:
                self.inside[i] = decided.inner[k]
        for k, point in decided.examples.items():
            norm, example = self.session.searcher.norm, point.float().cpu()[None]
            away = distance(norm, example, region.centre[k].float().cpu()[None])
            self.radii.broken[places[k]] = self.radii.broken[places[k]].minimum(away[0])
        return decided.verified


_FLAGS = ("verified", "exhausted", "late", "undecidable", "short")


def search(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Let branch and bound decide the undecided samples until the task's deadline.

    What has no bound for an operator here, or too little memory, gives way to the next method down, as among the bound
    methods. Raises OutOfTimeError where no time is left to take the network apart.
    """
    indices, ids = ledger.undecided, task.subject.dataset.ids
    try:
        work = _Decide(_searcher(task, ledger.seconds_left(task.entry.timeout)), task.epsilon)
    except IncompatibleError as error:
        undecided = tuple(ids[i] for i in indices.tolist())
        ledger.caveats.append(Caveat("weaker_method", f"{WEAKER} was used instead of {step}: {error}.", undecided))
        bound(WEAKER, ledger, task)
        return
    limit = f"{step} ended at its limit of {work.searcher.params.domains} subdomains for a sample"
    batches, checkpoint = groups(indices, task.subject.classifier.device), task.checkpoint(step, indices.tolist())
    exhausted, undecidable, short = list[int](), list[int](), list[int]()
    for batch, result in task.results(batches, work, step, checkpoint):
        members = batch.indices
        _enter(result, members, step, ledger)
        ledger.timed_out[members[result["late"]]] = True
        exhausted += members[result["exhausted"] & ~result["late"]].tolist()
        undecidable += members[result["undecidable"]].tolist()
        short += members[result["short"]].tolist()
        for index in members[result["failed"]].tolist():
            ledger.fail(index, step)
    for code, text, samples in (
        ("work_limit", limit, exhausted),
        ("undecided", f"{step}: what is left cannot be split further, or a class draws level", undecidable),
    ):
        if samples:
            undecided = tuple(ids[i] for i in samples)
            ledger.caveats.append(Caveat(code, f"{text}: {len(samples)} samples are undecided by it.", undecided))
    if short:
        task.bounder.fell_back_to(step, WEAKER, "out of memory on one sample", short)
        bound(WEAKER, ledger, task, torch.tensor(short))


def _searcher(task: VerificationTask, seconds: Tensor) -> Searcher:
    """Return the searcher of a task, its network taken apart; seconds: (N,), of each sample.

    Raises IncompatibleError for a model that it has no bounds for, OutOfTimeError where no time is left to take it apart.
    """
    lead, params = task.lead(ROUNDING), task.entry.branch_and_bound
    searcher = Searcher(task.subject, task.norm, lead, params, seconds, Deadline(task.deadline))
    with time_limit(task.deadline):
        searcher.network()
    return searcher


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
    classifier = trial.canonical.subject.classifier
    with time_limit(trial.bounder.deadline):
        Network(classifier.module, classifier.input_shape, classifier.device)


def _call(step: str, task: VerificationTask) -> Mapping[str, object]:
    data, limits = task.subject.dataset, task.entry.branch_and_bound.model_dump(mode="json")
    return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}


_OPTIONS = frozenset({"timeout", "batch_size"})  # a batch of bounds where it falls back to them
SEARCH = Step(search, _call, ROUNDING, _attempt, radii=search_radii, options=_OPTIONS)
