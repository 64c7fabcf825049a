"""From the cheapest bound to the whole search: verdicts of a batch of samples, within limits of time, work and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import count

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.memory import memory_to_use
from windtunnel.assessments.verification.branch_and_bound.activations import Staircase
from windtunnel.assessments.verification.branch_and_bound.intermediate import (
    bound_network,
    improve_network,
    influential,
    tighten,
)
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise, with_planes
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, LinearSpecs
from windtunnel.assessments.verification.branch_and_bound.search import BranchAndBoundSearch, Limits
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsifier import confirmed
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.batches import Batch, out_of_memory
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import OutOfTimeError
from windtunnel.core.machine import memory_limit, time_limit
from windtunnel.core.subject import Subject
from windtunnel.params.verification import BranchAndBound

# Iterations: of the margins at first, of the margins later, of the planes.
_QUICK_ROOT, _ROOT, _PLANES = 20, 60, 60
# Inner bounds that are improved: linear functions whose slopes are optimised (a function bounds all neurons of disjoint windows
# together), and the steps of each; beside max pooling fewer suffice. benchmarks/verification.py --methods measures them.
_FUNCTIONS, _STEPS = 1000, 20
_FUNCTIONS_BESIDE_POOLING, _STEPS_BESIDE_POOLING = 700, 10
_COLUMNS = 64  # neurons of each layer that get a plane for a margin
# Rounds of tightening: round r follows a search of first * 5**r subdomains, which is discarded, and improves the 200 * 10**r inner
# bounds that the margins depend on most, with 4 * 2**r splits each. In dense networks they get planes, which cost more; shallow
# convolutional networks are often decided by the first search.
_FIRST_SEARCH, _FIRST_SEARCH_SHALLOW, _SHALLOW = 100, 500, 3  # subdomains; layers of activations
_FIRST_BOUNDS, _MOST_WITH_PLANES, _FIRST_SPLITS = 200, 1200, 4
_MOST = 5 * 10**7  # inner bounds of a round times neurons of the network: each of them takes passes through it
# Of the missing margin, times its share of all there is to gain: a round gains as much, or none follows.
_MIN_GAIN = 0.05

# Bounds (low, up), float64 of its size, of the inputs of each layer of activations.
Inner = list[tuple[Tensor, Tensor]]
NOTHING: Mapping[int, Inner] = {}
# Whether points (m, d), float64, of samples (m,) are counter-examples; (m,) bool.
Check = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Decided:
    """Bounds of the margins of n samples so far.

    verified: bool (n,). bounds: float64 (n, K - 1), lower bounds of the margins, other classes in their order. examples:
    {sample: counter-example (d,), float64}. domains: int64 (n,). exhausted: bool (n,), not decided for want of work
    (subdomains or time); what else is not decided cannot be by this method. inner: {sample: what holds inside}, of samples that
    the cheapest bounds leave undecided.
    """

    verified: Tensor
    bounds: Tensor
    examples: dict[int, Tensor]
    domains: Tensor
    exhausted: Tensor
    inner: dict[int, Inner]


def decide(
    network: Network,
    region: BallRegions,
    targets: Tensor,
    goals: Tensor,
    check: Check,
    limits: Limits,
    expired: Callable[[], bool],
    larger: Mapping[int, Inner] = NOTHING,
) -> Decided:
    """Decide whether the class of each of n samples, targets (n,), holds in its region.

    goals: (n,), by how much each margin must be verified to exceed 0. expired: whether time is over, asked between batches.
    An OutOfTimeError of the caller's own limit, in between, ends it too: what is known by then stands.
    larger: what is known to hold inside in larger regions, by sample.
    """
    if any(isinstance(layer.activation, Staircase) for layer in network.layers):
        bounded = bound_network(network, region, limits.rows, memory=limits.memory)
        network, larger = network.with_jumps(bounded.low, bounded.up), NOTHING  # its layers are of this region alone
    work = _MarginBounds(network, region, targets, goals, check, limits, expired, larger)
    with suppress(OutOfTimeError):
        work.quickly()
        if limits.domains > 1:
            work.thoroughly()
    return work.decided()


@dataclass
class _MarginBounds:
    """The margins of all other classes of n samples, Q = n (K - 1) linear functions, and how far they are bounded."""

    _network: Network
    _region: BallRegions
    _targets: Tensor
    _goals: Tensor
    _check: Check
    _limits: Limits
    _expired: Callable[[], bool]
    _larger: Mapping[int, Inner]

    def __post_init__(self) -> None:
        n, k, device = len(self._region), self._network.num_outputs, self._network.device
        targets, eye = self._targets.to(device), torch.eye(k, device=device)
        others = torch.arange(k, device=device).expand(n, k) != targets[:, None]
        self._sample, other = others.nonzero().unbind(1)
        self._spec = eye[targets[self._sample]] - eye[other]
        self._goal = self._goals.to(device).double()[self._sample]
        self._bounds = torch.full((len(other),), -torch.inf, dtype=torch.float64, device=device)
        self._examples: dict[int, Tensor] = {}
        self._bend = True  # whether planes have gained something; where they have not once, they are not tried again
        self._domains, self._stuck = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
        self._inside: tuple[Bounded, Tensor] | None = None  # of which samples it is

    def quickly(self) -> None:
        """CROWN inside, slopes of the margins optimised: all samples together."""
        members = self._undecided().nonzero().flatten()
        if len(members):
            region, limits, initial_bounds = self._region.part(members), self._limits, self._known(members.tolist())
            bounded = bound_network(self._network, region, limits.rows, initial_bounds, limits.memory)
            self._inside = bounded, members
            self._roots(bounded, members, _QUICK_ROOT)

    def _known(self, members: list[int]) -> Inner:
        """Return what larger regions tell about each layer for `members`: bounds (low, up), (n, size); nothing where they tell nothing."""
        if not self._larger:
            return []
        device, initial_bounds = self._network.device, list[tuple[Tensor, Tensor]]()
        for j, layer in enumerate(self._network.layers):
            up = torch.full((layer.size,), torch.inf, dtype=torch.float64)
            pairs = [self._larger[member][j] if member in self._larger else (-up, up) for member in members]
            lows, ups = (torch.stack(ends).to(device) for ends in zip(*pairs, strict=True))
            initial_bounds.append((lows, ups))
        return initial_bounds

    def thoroughly(self) -> None:
        """Bounds inside improved where the margins hang on them, then searches with tighter and tighter ones."""
        members = self._undecided().nonzero().flatten()
        if not len(members) or self._inside is None or self._expired():
            return
        bounded = self._inside[0].part(torch.searchsorted(self._inside[1], members))
        self._inside = bounded, members
        _, rows = self._roots(bounded, members, _QUICK_ROOT)
        if rows is None or self._expired():
            return
        self._improve_inner(bounded, rows)
        roots = self._bent_roots(bounded, members)
        shallow = not bounded.is_dense and len(self._network.layers) <= _SHALLOW
        first = _FIRST_SEARCH_SHALLOW if shallow else _FIRST_SEARCH
        another_round = self._network.piecewise_linear and len(self._network.layers) > 1
        for round_ in count():
            if not another_round or (domains := first * 5**round_) >= self._limits.domains:
                break
            self._search(bounded, members, roots, domains)
            open_ = self._open(members)
            if not len(open_) or self._expired():
                return
            bounds, rows = self._bounds[open_].clone(), roots[1]
            assert rows is not None
            share = self._tighten(bounded, rows.at(torch.isin(roots[0], open_)), round_)
            roots = self._bent_roots(bounded, members)
            gained = (self._bounds[open_] - bounds) / (self._goal[open_] - bounds).clamp(min=1e-12)
            another_round = bool(gained.amax() > _MIN_GAIN * share.amin())
        self._search(bounded, members, roots, self._limits.domains)

    def _improve_inner(self, bounded: Bounded, margins: LinearSpecs) -> Tensor:
        """Optimise the slopes of the inner bounds that the margins depend on most, bound the others again; return as `_tighten`."""
        pooling = self._network.has_windows
        functions, steps = (_FUNCTIONS_BESIDE_POOLING, _STEPS_BESIDE_POOLING) if pooling else (_FUNCTIONS, _STEPS)
        which, share = influential(bounded, margins, functions, together=True)
        improve_network(bounded, which, steps, self._expired, others=not pooling)
        return share

    def _tighten(self, bounded: Bounded, margins: LinearSpecs, round_: int) -> Tensor:
        """Tighten the inner bounds that the margins depend on most; (n,), which share they are of all there is to gain."""
        if self._network.has_windows:  # planes of pooling windows gain more than splits
            return self._improve_inner(bounded, margins)
        most = min(_FIRST_BOUNDS * 10**round_, _MOST // self._network.width)
        most = max(1, min(most, _MOST_WITH_PLANES) if bounded.is_dense else most)
        which, share = influential(bounded, margins, most)
        tighten(bounded, which, _FIRST_SPLITS * 2**round_, self._expired, planes=bounded.is_dense)
        return share

    def decided(self) -> Decided:
        """Return the present decision of each sample."""
        open_ = self._undecided().cpu()
        verified = ~open_ & ~self._stuck
        verified[list(self._examples)] = False
        bounds = self._bounds.view(len(self._region), -1).cpu()
        return Decided(verified, bounds, self._examples, self._domains, open_, self._inner())

    def _inner(self) -> dict[int, Inner]:
        """Bounds of the inputs of activations, as tight as they have become."""
        if self._inside is None:
            return {}
        bounded, members = self._inside
        pairs = list(zip(bounded.low, bounded.up, strict=True))
        return {int(member): [(low[i].cpu(), up[i].cpu()) for low, up in pairs] for i, member in enumerate(members)}

    def _undecided(self) -> Tensor:
        """(n,) bool: neither verified, nor broken, nor stuck."""
        open_ = torch.zeros(len(self._region), dtype=torch.bool, device=self._network.device)
        open_[self._sample[self._bounds <= self._goal]] = True
        open_[list(self._examples)] = False
        return open_ & ~self._stuck.to(open_.device)

    def _open(self, members: Tensor) -> Tensor:
        """Return indices of the margins of `members` that are still to be verified, of undecided samples only."""
        is_requested = torch.zeros(len(self._region), dtype=torch.bool, device=members.device)
        is_requested[members] = True
        return ((self._bounds <= self._goal) & (is_requested & self._undecided())[self._sample]).nonzero().flatten()

    def _roots(self, bounded: Bounded, members: Tensor, iterations: int) -> tuple[Tensor, LinearSpecs | None]:
        """Bound the open margins of `members`, whose regions are those of `bounded`; (their indices, their rows)."""
        position = torch.zeros(len(self._region), dtype=torch.int64, device=members.device)
        position[members] = torch.arange(len(members), device=members.device)
        open_, parts = self._open(members), []
        for part in open_.split(self._limits.rows):
            if len(part):
                rows = bounded.start(len(self._network.layers), self._spec[part], position[self._sample[part]])
                _, better = optimise(bounded, rows, iterations, 2 * self._goal[part].float())
                self._bounds[part] = torch.maximum(self._bounds[part], bounded.value(better))
                parts.append(better)
        return open_, LinearSpecs.joined(parts) if parts else None

    def _bent_roots(self, bounded: Bounded, members: Tensor) -> tuple[Tensor, LinearSpecs | None]:
        """Return the root rows as `_roots` does; margins that stay open are bounded with planes in the place of chords."""
        open_specs, rows = self._roots(bounded, members, _ROOT)
        still = (self._bounds[open_specs] <= self._goal[open_specs]).nonzero().flatten()
        if rows is None or not len(still) or self._expired() or not self._bend:
            return open_specs, rows
        open_, rows = open_specs[still], with_planes(bounded, rows.at(still), _PLANES, _COLUMNS)
        self._bend = bounded.is_dense or bool(rows.planes)
        for part in torch.arange(len(open_), device=open_.device).split(self._limits.rows):
            self._bounds[open_[part]] = torch.maximum(self._bounds[open_[part]], bounded.value(rows.at(part)))
        return open_, rows

    def _search(
        self, bounded: Bounded, members: Tensor, roots: tuple[Tensor, LinearSpecs | None], domains: int
    ) -> None:
        """Branch and bound over what is open of the margins `roots` of `members`, at most `domains` subdomains a sample."""
        open_, rows = roots
        if rows is None or self._expired():
            return
        remaining = torch.isin(open_, self._open(members)).nonzero().flatten()
        if not len(remaining):
            return
        open_, rows, limits = open_[remaining], rows.at(remaining), replace(self._limits, domains=domains)
        tree = BranchAndBoundSearch(bounded, rows, self._bounds[open_], self._goal[open_], limits)
        try:
            tree.run(lambda points, at: self._check(points, members[at]), self._expired)
        finally:  # out of time in the middle: what was found by then stands
            self._enter(tree, open_, members)

    def _enter(self, tree: BranchAndBoundSearch, open_: Tensor, members: Tensor) -> None:
        """Write down what a search over the margins `open_` of `members` has found."""
        at = members.cpu()
        self._domains[at] += tree.domains
        self._stuck[at] |= tree.given_up
        self._examples |= {int(members[i]): point for i, point in tree.examples.items()}
        closed = open_[~tree.open_queries]
        goal = self._goal[closed]
        self._bounds[closed] = self._bounds[closed].maximum(torch.nextafter(goal, torch.full_like(goal, torch.inf)))


WEAKER = "alpha-crown"  # what answers where branch and bound cannot
# An accelerator is busy with several samples at once; on a CPU one after the other is as quick, and lighter.
_TOGETHER = 8
_FLOAT = 4  # bytes
_COPIES = 12  # of all activations of a row, at the peak of a bounding pass
_MOST_ROWS = 256  # on a CPU more do not go faster
_UNUSED = 0.05  # of its time a search leaves at most, so that what it found last is kept


def limits_of(params: BranchAndBound, network: Network) -> Limits:
    """Limits on the work per sample; how many rows go together follows from the memory allowed and the network alone."""
    memory = params.memory * 2**20
    rows = memory // (_COPIES * _FLOAT * network.width)
    most = _MOST_ROWS if network.device.type == "cpu" else 16 * _MOST_ROWS
    assert params.domains is not None  # VerificationEntry.branch_and_bound
    return Limits(params.domains, params.iterations, params.batch, memory, max(2, min(most, rows)))


def groups(indices: Tensor, device: torch.device) -> list[Batch]:
    """Return `indices` in batches of samples that are searched together."""
    parts = indices.split(1 if device.type == "cpu" else _TOGETHER) if len(indices) else ()
    return [Batch(number, part, 0) for number, part in enumerate(parts)]


@dataclass(slots=True)
class Searcher:
    """Decides samples of `subject` under one norm, in any process.

    lead: by how much the target must lead every other class. seconds: float (N,), of each sample; inf for no limit.
    deadline: when all is over. The network is taken apart once in each process.
    """

    subject: Subject
    norm: Norm
    lead: float
    params: BranchAndBound
    seconds: Tensor
    deadline: Deadline
    _network: Network | None = None

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Without the network, which holds what cannot be sent."""
        return None, {field.name: getattr(self, field.name) for field in fields(self)} | {"_network": None}

    def network(self) -> Network:
        """Return the subject's network, taken apart. Raises IncompatibleError naming an operator without linear bounds."""
        if self._network is None:
            classifier = self.subject.classifier
            self._network = Network(classifier.module, classifier.input_shape, classifier.device)
        return self._network

    def forget(self) -> None:
        """Free the memory of the network's recorded runs, which a weaker method needs."""
        self._network = None

    def session(self, indices: Tensor) -> Session:
        """Return a session on the samples `indices` (n,); their time begins."""
        started = time.monotonic()
        late = min(self.deadline.here(), started + float(self.seconds[indices].sum()))
        return Session(self, indices, started, _After(late))


@dataclass(slots=True)
class Session:
    """The search of a group of samples, `indices` (n,).

    started: time.monotonic() of its begin. interrupted: time was over in the middle of something. short: memory did not hold
    a single sample.
    """

    searcher: Searcher
    indices: Tensor
    started: float
    expired: _After
    interrupted: bool = False
    short: bool = False

    @property
    def late(self) -> bool:
        """Return whether what is not decided is so for want of time."""
        return self.interrupted or self.expired.over or time.monotonic() > self.expired.late

    def region(self, at: Tensor, epsilon: float | Tensor) -> BallRegions:
        """Return the balls around the group's samples `at` (m,), of `epsilon`, one for all or one for each of them."""
        subject = self.searcher.subject
        inputs = subject.dataset.inputs[self.indices[at]]
        return BallRegions.around(inputs, self.searcher.norm, epsilon, subject.classifier.device)

    def decide(self, at: Tensor, region: BallRegions, larger: Mapping[int, Inner] = NOTHING) -> Decided | None:
        """Branch and bound of the group's samples `at` in their `region`; `larger` as `decide` takes it.

        None where time or memory is out in the middle of something, so that nothing is known.
        """
        subject, params, device = self.searcher.subject, self.searcher.params, region.centre.device
        targets = subject.dataset.targets[self.indices[at]]
        goals = torch.full((len(at),), self.searcher.lead, dtype=torch.float64)
        try:
            with time_limit(self.expired.late), memory_limit(memory_to_use(device), device):
                network = self.searcher.network()
                check, limits = _confirms(network, subject.classifier, targets), limits_of(params, network)
                return decide(network, region, targets, goals, check, limits, self.expired, larger)
        except OutOfTimeError:
            self.interrupted = True
        except (RuntimeError, MemoryError) as error:
            if len(self.indices) > 1 or not out_of_memory(error):
                raise
            self.searcher.forget()
            self.short = True
        return None


class _After:
    """Return whether the next step, taken to be as long as the last, would overrun the deadline."""

    def __init__(self, late: float) -> None:
        self.late, self._asked, self.over = late, time.monotonic(), False
        self._most = _UNUSED * (late - self._asked)

    def __call__(self) -> bool:
        now = time.monotonic()
        took, self._asked = min(now - self._asked, self._most), now
        self.over = self.over or now + took > self.late
        return self.over


def _confirms(network: Network, classifier: Classifier, targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a check: what leads in float64 here is a counter-example if it is one by the classifier, in the precision it has."""

    def check(points: Tensor, sample: Tensor) -> Tensor:
        inputs = points.view(-1, *network.input_shape)
        labels = targets.to(sample.device)[sample][:, None]
        logits = network.logits(inputs)
        is_broken = logits.scatter(1, labels, -torch.inf).amax(1) > logits.gather(1, labels).squeeze(1)
        if bool(is_broken.any()):
            is_broken[is_broken.clone()] = confirmed(
                classifier, inputs[is_broken].float(), labels[is_broken, 0].cpu()
            ).to(is_broken.device)
        return is_broken

    return check
