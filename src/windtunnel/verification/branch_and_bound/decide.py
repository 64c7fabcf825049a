"""From the cheapest bound to the whole search: verdicts of a batch of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.verification.branch_and_bound.intermediate import bound_network
from windtunnel.verification.branch_and_bound.network import Network
from windtunnel.verification.branch_and_bound.optimise import optimise
from windtunnel.verification.branch_and_bound.propagation import Bounded, Rows
from windtunnel.verification.branch_and_bound.regions import Region
from windtunnel.verification.branch_and_bound.search import Limits, Search
from windtunnel.verification.branch_and_bound.tighten import tighten

_QUICK_ROOT, _ROOT, _INNER = 20, 60, 20  # iterations: at first, of the margins, of the inputs of activations
_FIRST_SEARCH = 256  # subdomains before the bounds inside are tightened
_TIGHTENING = (8, 24)  # splits for each side of each unstable unit
_WORTH_IT = 0.1  # of the missing margin: what a round of tightening must gain for a longer one to follow


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of n samples.

    proved: bool (n,). bounds: float64 (n, K - 1), lower bounds of the margins at the roots, other classes in their order.
    examples: {sample: counter-example (d,), float64}. domains: int64 (n,). exhausted: bool (n,), not decided for want of
    work (domains or time); the others that are not decided cannot be by this method.
    """

    proved: Tensor
    bounds: Tensor
    examples: dict[int, Tensor]
    domains: Tensor
    exhausted: Tensor


def decide(
    network: Network,
    region: Region,
    targets: Tensor,
    goals: Tensor,
    check: Callable[[Tensor, Tensor], Tensor],
    limits: Limits,
    expired: Callable[[], bool],
) -> Outcome:
    """Decide whether the class of each of n samples holds in its region.

    goals: (n,), by how much each margin must be proved to exceed 0. check: whether points (m, d) of samples (m,) are
    counter-examples, (m,) bool. expired: whether time is over, asked between batches.
    """
    n, device = len(region), network.device
    targets, goals = targets.to(device), goals.to(device).double()
    sample, other = _other_classes(targets, network.num_outputs)
    spec = torch.zeros(len(sample), network.num_outputs, device=device)
    rows = torch.arange(len(sample), device=device)
    spec[rows, targets[sample]] = 1.0
    spec[rows, other] -= 1.0
    bounds = torch.full((len(sample),), -torch.inf, dtype=torch.float64, device=device)
    examples: dict[int, Tensor] = {}
    domains, gave_up = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)

    def undecided() -> Tensor:
        open_ = torch.zeros(n, dtype=torch.bool, device=device)
        open_[sample[bounds <= goals[sample]]] = True
        open_[list(examples)] = False
        open_[gave_up.to(device)] = False
        return open_

    def roots(bounded: Bounded, chosen: Tensor, iterations: int) -> tuple[Rows, Tensor]:
        """The rows of the queries `chosen` over `bounded`, whose samples are numbered by `place`, and their new bounds."""
        made, values = [], []
        for part in chosen.split(limits.rows):
            start = bounded.start(len(network.layers), spec[part], place[sample[part]])
            _, better = optimise(bounded, start, iterations, 2 * goals[sample[part]].float())
            value = bounded.value(better)
            values.append(torch.maximum(value, bounds[part]))
            made.append(better)
        bounds[chosen] = torch.cat(values)
        joined = (torch.cat([getattr(r, k) for r in made]) for k in ("spec", "sample", "signs", "alpha", "beta"))
        return Rows(len(network.layers), *joined), bounds[chosen]

    for iterations, quick in ((0, True), (_INNER, False)):
        members = undecided().nonzero().flatten()
        if not len(members) or expired():
            break
        place = torch.full((n,), -1, device=device)
        place[members] = torch.arange(len(members), device=device)
        bounded = bound_network(network, _part(region, members), iterations, limits.rows)
        chosen = ((bounds <= goals[sample]) & (place[sample] >= 0)).nonzero().flatten()
        roots(bounded, chosen, _QUICK_ROOT if quick else _ROOT)
        if quick:
            continue

        def asked(points: Tensor, at: Tensor) -> Tensor:
            return check(points, members[at])

        def search(work: int) -> None:
            chosen = ((bounds <= goals[sample]) & (undecided() & (place >= 0))[sample]).nonzero().flatten()
            if not len(chosen) or expired():
                return
            found, values = roots(bounded, chosen, _ROOT)
            tree = Search(bounded, found, values, goals[sample[chosen]], replace(limits, domains=work))
            tree.run(asked, expired)
            domains[members.cpu()] += tree.domains
            examples.update({int(members[i]): point for i, point in tree.examples.items()})
            open_ = tree.open_queries
            bounds[chosen[~open_]] = torch.maximum(bounds[chosen[~open_]], torch.nextafter(goals[sample[chosen[~open_]]], torch.tensor(torch.inf, dtype=torch.float64)))
            gave_up[members.cpu()] |= tree.given_up

        search(min(_FIRST_SEARCH, limits.domains))
        for splits in _TIGHTENING:
            chosen = ((bounds <= goals[sample]) & undecided()[sample]).nonzero().flatten()
            if not len(chosen) or expired() or limits.domains <= _FIRST_SEARCH:
                break
            before = bounds[chosen].clone()
            tighten(bounded, splits, _INNER, limits.rows, expired)
            _, after = roots(bounded, chosen, _ROOT)
            print("tight", splits, before.min().item(), after.min().item())
            missing = (goals[sample[chosen]] - before).clamp(min=1e-12)
            if float(((after - before) / missing).amax()) < _WORTH_IT:
                break
        search(limits.domains)
    left = undecided()
    proved = ~left
    proved[list(examples)] = False
    proved[gave_up.to(device)] = False
    return Outcome(proved.cpu(), bounds.view(n, -1).cpu(), examples, domains, left.cpu())


def _other_classes(targets: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(sample, class) of every other class of every sample, int64 (n (K - 1),) each."""
    n = len(targets)
    every = torch.arange(num_classes, device=targets.device).expand(n, num_classes)
    wanted = every != targets[:, None]
    return wanted.nonzero()[:, 0], every[wanted]


def _part(region: Region, members: Tensor) -> Region:
    return Region(region.norm, *(t[members] for t in (region.centre, region.low, region.high, region.radius)))
