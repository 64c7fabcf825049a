"""Certified radii by branch and bound: of each sample upwards from what is proved, below what is broken.

What holds inside the network in a ball holds in every smaller one, and a counter-example breaks every larger one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.decide import Inner
from windtunnel.assessments.verification.branch_and_bound.session import WEAKER, Searcher, Session, groups
from windtunnel.assessments.verification.cascade.ledger import Ledger
from windtunnel.assessments.verification.cascade.radius import RadiusBounds, certified_radius, raise_radius
from windtunnel.assessments.verification.cascade.steps import proves
from windtunnel.assessments.verification.cascade.task import VerificationTask
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsification.falsifier import ROUNDING
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Caveat
from windtunnel.core.distances import distance
from windtunnel.core.errors import IncompatibleError, OutOfTimeError
from windtunnel.core.machine import time_limit
from windtunnel.params.verification import Radius
from windtunnel.runtime.batch_runner import each_batch


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
    subject, entry, radius = task.subject, task.entry, task.entry.radius
    assert radius is not None
    params = entry.branch_and_bound
    seconds = torch.full((len(subject.dataset),), float("inf") if entry.timeout is None else entry.timeout)
    searcher = Searcher(subject, task.norm, task.lead(ROUNDING), params, seconds, Deadline(task.deadline))
    open_ = subject.clean_correct & radii.unsettled(radius.max, radius.tolerance)
    unfinished, short = torch.zeros_like(open_), torch.zeros_like(open_)
    try:
        with time_limit(task.deadline):
            device = searcher.network().device
    except OutOfTimeError:
        return open_, short
    work = _Radii(searcher, radius, radii)
    parts = groups(open_.nonzero().flatten(), device)
    for batch, result in each_batch(
        [Batch(number, part, 0) for number, part in enumerate(parts)],
        work,
        name=f"{task.name} radius",
        checkpoint=task.checkpoint(ledger, step, "radius", radii.holds.tolist(), radii.broken.tolist()),
        without=work.nothing,
        incidents=task.bounder.incidents,
    ):
        members = batch.indices
        radii.holds[members], radii.broken[members] = result["holds"], result["broken"]
        unfinished[members], short[members] = result["unfinished"], result["short"]
    remaining = (
        (open_ & radii.unsettled(radius.max, radius.tolerance) & ~unfinished & ~short).nonzero().flatten().tolist()
    )
    if remaining:
        text = (
            f"{len(remaining)} samples: larger radii may hold: the certified one and the nearest counter-example known, if any, are "
            f"further apart than the tolerance ({step} was limited to {params.domains} subdomains an epsilon)."
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
