"""From the cheapest bound to the whole search: verdicts of a batch of samples."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.fit_planes import with_planes
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.neuron_scores import influential
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.search import BranchAndBoundSearch, Limits
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs
from windtunnel.assessments.verification.branch_and_bound.tighten import TighteningBudget, tighten
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.errors import OutOfTimeError

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
_MIN_GAIN = (
    0.05  # of the missing margin, times its share of all there is to gain: a round gains as much, or none follows
)

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
    work = _MarginBounds(network, region, targets, goals, check, limits, expired, larger)
    with suppress(OutOfTimeError):
        work.quickly()
        if limits.domains > 1:
            work.thoroughly()
    return work.decided()


class _MarginBounds:
    """The margins of all other classes of n samples, Q = n (K - 1) linear functions, and how far they are bounded."""

    def __init__(
        self,
        network: Network,
        region: BallRegions,
        targets: Tensor,
        goals: Tensor,
        check: Check,
        limits: Limits,
        expired: Callable[[], bool],
        larger: Mapping[int, Inner],
    ) -> None:
        self._network, self._region, self._check, self._limits, self._expired = network, region, check, limits, expired
        n, k, device = len(region), network.num_outputs, network.device
        targets, self._goals = targets.to(device), goals.to(device).double()
        others = torch.arange(k, device=device).expand(n, k) != targets[:, None]
        self._sample, other = others.nonzero().unbind(1)
        eye = torch.eye(k, device=device)
        self._spec = eye[targets[self._sample]] - eye[other]
        self._goal = self._goals[self._sample]
        self._bounds = torch.full((len(other),), -torch.inf, dtype=torch.float64, device=device)
        self._examples: dict[int, Tensor] = {}
        self._bend = True  # whether planes have gained something; where they have not once, they are not tried again
        self._domains, self._stuck = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
        self._inside: tuple[Bounded, Tensor] | None = None  # of which samples it is
        self._larger = larger

    def quickly(self) -> None:
        """CROWN inside, slopes of the margins optimised: all samples together."""
        members = self._undecided().nonzero().flatten()
        if len(members):
            initial_bounds = self._known(members.tolist())
            bounded = bound_network(self._network, self._region.part(members), self._limits.rows, initial_bounds)
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
        limits, pooling = self._limits, self._network.has_windows
        functions, steps = (_FUNCTIONS_BESIDE_POOLING, _STEPS_BESIDE_POOLING) if pooling else (_FUNCTIONS, _STEPS)
        which, share = influential(bounded, margins, functions, limits.rows, together=True)
        improve_network(bounded, which, steps, limits.rows, limits.memory, self._expired, others=not pooling)
        return share

    def _tighten(self, bounded: Bounded, margins: LinearSpecs, round_: int) -> Tensor:
        """Tighten the inner bounds that the margins depend on most; (n,), which share they are of all there is to gain."""
        if self._network.has_windows:  # planes of pooling windows gain more than splits
            return self._improve_inner(bounded, margins)
        most = min(_FIRST_BOUNDS * 10**round_, _MOST // self._network.width)
        most = max(1, min(most, _MOST_WITH_PLANES) if bounded.is_dense else most)
        which, share = influential(bounded, margins, most, self._limits.rows)
        effort = TighteningBudget(_FIRST_SPLITS * 2**round_, bounded.is_dense)
        tighten(bounded, which, effort, self._limits.rows, self._limits.memory, self._expired)
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
        open_, rows = open_specs[still], with_planes(bounded, rows.at(still), _PLANES, self._limits.memory, _COLUMNS)
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
        open_, rows = open_[remaining], rows.at(remaining)
        tree = BranchAndBoundSearch(
            bounded, rows, self._bounds[open_], self._goal[open_], replace(self._limits, domains=domains)
        )
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
