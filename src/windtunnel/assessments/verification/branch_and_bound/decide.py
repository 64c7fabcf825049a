"""From the cheapest bound to the whole search: verdicts of a batch of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.fit import with_planes
from windtunnel.assessments.verification.branch_and_bound.influence import influential
from windtunnel.assessments.verification.branch_and_bound.intermediate import bound_network, improve_network
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import optimise
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded, Rows
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.assessments.verification.branch_and_bound.search import Limits, Search
from windtunnel.assessments.verification.branch_and_bound.tighten import Effort, tighten
from windtunnel.core.limits import OutOfTimeError

# Iterations: of the margins at first, of the margins later, of the planes.
_QUICK_ROOT, _ROOT, _PLANES = 20, 60, 60


@dataclass(frozen=True, slots=True)
class _Slopes:
    """functions: linear ones of inner units, the most influential, whose slopes are optimised. steps: of each. others: bound again too."""

    functions: int
    steps: int
    others: bool

    splits: ClassVar[int] = 0


# Nearly all functions of a dense network. Each is of one unit, or of all at positions of disjoint windows: the 1,500 most influential
# units of a LeNet are parts of 1,050 such functions, of which the best 800 give the same bounds. Where windows are bounded as one
# (`windows`) less does: a LeNet trained adversarially (epsilon 0.1) has margins of -1.19 and -2.22 after 11 s, of
# -0.73 and -1.8 after 25 s, and either way they close in 2 s more.
_SLOPES, _BESIDE_WINDOWS = _Slopes(1000, 20, True), _Slopes(700, 10, False)
_COLUMNS = 64  # of each layer, that get planes for a margin
# What is tightened in turn, and how many subdomains of a sample are searched before: that is thrown away afterwards, but it decides
# what is nearly decided. Planes tighten more than splits do, where they are to be had.
# Beside windows splits of 200 bounds gain 0.01 to 0.02 in 20 s, slopes and planes a second time 0.04 to 0.06 in 27 s.
# Then minutes more, for searches that may take longer than the default's. Measured on margins that 36,000 to 120,000 subdomains do not
# close: a residual network's -1.21 becomes -0.30, those of 4 x 256 -3.10 and -4.07 become -1.77 and -2.79.
_LONG = 20_000
_Rounds = tuple[tuple[int, Effort | _Slopes], ...]
_CHORDS: tuple[_Rounds, _Rounds] = (
    ((100, Effort(200, 8, False)), (500, Effort(5000, 8, False))),
    ((5000, Effort(5000, 32, False)),),
)
_BENT: tuple[_Rounds, _Rounds] = (
    ((100, Effort(200, 0, True)), (500, Effort(1200, 16, True))),
    ((5000, Effort(1200, 64, True)), (10_000, Effort(1200, 256, True))),
)
_WINDOWS: tuple[_Rounds, _Rounds] = (((500, _BESIDE_WINDOWS),), ((5000, _BESIDE_WINDOWS),))
_MOST = 5 * 10**7  # bounds that are tightened, times the units of the network: each of them takes passes through it
# Another round must be worth it: the last one has gained that part of the missing margin, for its share of what there was to gain, and has
# left some, or splits more. Measured: 200 bounds are 0.75 to 0.9 of it in a CNN of 2 convolutions, 0.25 in a residual network of 5.
_WORTH_IT, _ENOUGH = 0.05, 0.7

# Bounds (low, up), float64 of its size, of the inputs of each layer of activations.
Inner = list[tuple[Tensor, Tensor]]
NOTHING: Mapping[int, Inner] = {}
# Whether points (m, d), float64, of samples (m,) are counter-examples; (m,) bool.
Check = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known of n samples.

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
    region: Region,
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
    work = _Work(network, region, targets, goals, check, limits, expired, larger)
    with suppress(OutOfTimeError):
        work.quickly()
        work.thoroughly()
    return work.decided()


class _Work:
    """The margins of all other classes of n samples, Q = n (K - 1) linear functions, and how far they are bounded."""

    def __init__(
        self,
        network: Network,
        region: Region,
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
            known = self._known(members.tolist())
            bounded = bound_network(self._network, self._region.part(members), self._limits.rows, known)
            self._inside = bounded, members
            self._roots(bounded, members, _QUICK_ROOT)

    def _known(self, members: list[int]) -> Inner:
        """Of each layer, what larger regions tell about `members`: bounds (low, up), (n, size); nothing where they tell nothing."""
        if not self._larger:
            return []
        device, known = self._network.device, list[tuple[Tensor, Tensor]]()
        for j, layer in enumerate(self._network.layers):
            up = torch.full((layer.size,), torch.inf, dtype=torch.float64)
            pairs = [self._larger[member][j] if member in self._larger else (-up, up) for member in members]
            lows, ups = (torch.stack(ends).to(device) for ends in zip(*pairs, strict=True))
            known.append((lows, ups))
        return known

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
        windows = self._network.has_windows
        self._better_slopes(bounded, rows, _BESIDE_WINDOWS if windows else _SLOPES)
        roots = self._bent_roots(bounded, members)
        worth, done, splits = self._network.piecewise_linear and len(self._network.layers) > 1, 0.0, 0
        usual, more = _WINDOWS if windows else _BENT if bounded.is_dense else _CHORDS
        for before, effort in usual + more if self._limits.domains > _LONG else usual:
            worth = worth and (done < _ENOUGH or effort.splits > splits)
            if not worth or before >= self._limits.domains:
                break
            self._search(bounded, members, roots, before)
            open_ = self._open(members)
            if not len(open_) or self._expired():
                return
            known, rows = self._bounds[open_].clone(), roots[1]
            assert rows is not None
            share = self._tightened(bounded, rows.at(torch.isin(roots[0], open_)), effort)
            roots = self._bent_roots(bounded, members)
            gained = (self._bounds[open_] - known) / (self._goal[open_] - known).clamp(min=1e-12)
            done, splits = float(share.amin()), effort.splits
            worth = bool(gained.amax() > _WORTH_IT * done)
        self._search(bounded, members, roots, self._limits.domains)

    def _better_slopes(self, bounded: Bounded, margins: Rows, slopes: _Slopes) -> Tensor:
        """Improve the inner bounds that the margins hang on most; (n,), which share they are of all that there is to gain."""
        limits = self._limits
        which, share = influential(bounded, margins, slopes.functions, limits.rows, together=True)
        improve_network(bounded, which, slopes.steps, limits.rows, limits.memory, self._expired, others=slopes.others)
        return share

    def _tightened(self, bounded: Bounded, margins: Rows, effort: Effort | _Slopes) -> Tensor:
        """As `_better_slopes`, by splits or by planes where that is the effort."""
        if isinstance(effort, _Slopes):
            return self._better_slopes(bounded, margins, effort)
        most = max(1, min(effort.bounds, _MOST // self._network.width))
        which, share = influential(bounded, margins, most, self._limits.rows)
        tighten(bounded, which, effort, self._limits.rows, self._limits.memory, self._expired)
        return share

    def decided(self) -> Decided:
        """What is known now."""
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
        """Indices of the margins of `members` that are still to be verified, of undecided samples only."""
        asked = torch.zeros(len(self._region), dtype=torch.bool, device=members.device)
        asked[members] = True
        return ((self._bounds <= self._goal) & (asked & self._undecided())[self._sample]).nonzero().flatten()

    def _roots(self, bounded: Bounded, members: Tensor, iterations: int) -> tuple[Tensor, Rows | None]:
        """Bound the open margins of `members`, whose regions are those of `bounded`; (their indices, their rows)."""
        place = torch.zeros(len(self._region), dtype=torch.int64, device=members.device)
        place[members] = torch.arange(len(members), device=members.device)
        open_, made = self._open(members), []
        for part in open_.split(self._limits.rows):
            if len(part):
                rows = bounded.start(len(self._network.layers), self._spec[part], place[self._sample[part]])
                _, better = optimise(bounded, rows, iterations, 2 * self._goal[part].float())
                self._bounds[part] = torch.maximum(self._bounds[part], bounded.value(better))
                made.append(better)
        return open_, Rows.joined(made) if made else None

    def _bent_roots(self, bounded: Bounded, members: Tensor) -> tuple[Tensor, Rows | None]:
        """As `_roots`; margins that stay open are bounded with planes in the place of chords."""
        asked, rows = self._roots(bounded, members, _ROOT)
        still = (self._bounds[asked] <= self._goal[asked]).nonzero().flatten()
        if rows is None or not len(still) or self._expired() or not self._bend:
            return asked, rows
        open_, rows = asked[still], with_planes(bounded, rows.at(still), _PLANES, self._limits.memory, _COLUMNS)
        self._bend = bounded.is_dense or bool(rows.planes)
        for part in torch.arange(len(open_), device=open_.device).split(self._limits.rows):
            self._bounds[open_[part]] = torch.maximum(self._bounds[open_[part]], bounded.value(rows.at(part)))
        return open_, rows

    def _search(self, bounded: Bounded, members: Tensor, roots: tuple[Tensor, Rows | None], domains: int) -> None:
        """Branch and bound over what is open of the margins `roots` of `members`, at most `domains` subdomains a sample."""
        open_, rows = roots
        if rows is None or self._expired():
            return
        left = torch.isin(open_, self._open(members)).nonzero().flatten()
        if not len(left):
            return
        open_, rows = open_[left], rows.at(left)
        tree = Search(bounded, rows, self._bounds[open_], self._goal[open_], replace(self._limits, domains=domains))
        try:
            tree.run(lambda points, at: self._check(points, members[at]), self._expired)
        finally:  # out of time in the middle: what was found by then stands
            self._enter(tree, open_, members)

    def _enter(self, tree: Search, open_: Tensor, members: Tensor) -> None:
        """Write down what a search over the margins `open_` of `members` has found."""
        at = members.cpu()
        self._domains[at] += tree.domains
        self._stuck[at] |= tree.given_up
        self._examples |= {int(members[i]): point for i, point in tree.examples.items()}
        closed = open_[~tree.open_queries]
        goal = self._goal[closed]
        self._bounds[closed] = self._bounds[closed].maximum(torch.nextafter(goal, torch.full_like(goal, torch.inf)))
