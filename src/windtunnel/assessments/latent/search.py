"""Projected gradient search around centres, batched over samples and restarts: in latent space and in pixels.

The objective is the margin, score(true) - max other score (arXiv 2003.01993, section 4.7); every second restart of a
minimum search is aimed at one other class instead (Gowal et al. 2019, arXiv 1910.09338), since the other class that leads is not
always the nearest. A restart stops, and leaves the batch, where the margin is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.latent.noise import scaled_norm
from windtunnel.core.errors import UnsoundError

# A smaller lead of the other class can turn with the size of the batch that the sample is in.
ROUNDING = 1e-5
BISECTIONS = 12
# Restarts of a minimum search that run side by side; each group starts from what the ones before it found.
GROUP = 4
OTHER_CLASSES = 10  # classes that restarts are aimed at


@dataclass(frozen=True, slots=True)
class Geometry:
    """A norm: `norm` (M, ...) -> (M,) and its `dual`, up to a factor, for gradients; `direction`, the steepest step of
    norm 1; `project` onto balls of radii (M,).
    """

    norm: Callable[[Tensor], Tensor]
    dual: Callable[[Tensor], Tensor]
    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, Tensor], Tensor]


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in like.shape[1:]))


def _largest(changes: Tensor) -> Tensor:
    return changes.flatten(1).abs().amax(1)


def _total(gradient: Tensor) -> Tensor:
    return gradient.flatten(1).abs().sum(1)


def _unit(gradient: Tensor) -> Tensor:
    return gradient / _column(scaled_norm(gradient).clamp_min(1e-30), gradient)


def _shorten(changes: Tensor, radii: Tensor) -> Tensor:
    return changes * _column((radii / scaled_norm(changes).clamp_min(1e-30)).clamp(max=1), changes)


def _clamp(changes: Tensor, radii: Tensor) -> Tensor:
    bound = _column(radii, changes)
    return changes.clamp(-bound, bound)


SCALED_L2 = Geometry(scaled_norm, scaled_norm, _unit, _shorten)
LINF = Geometry(_largest, _total, torch.sign, _clamp)


@dataclass(frozen=True, slots=True)
class Problem:
    """The search problem. scores(points (M, ...), indices (M,)) -> (M, K): the classifier's, with sample `indices[i]` at point i.

    centres: (S, ...). classes: int64 (S,), the true ones. span: points are kept in this range, None for no range.
    """

    scores: Callable[[Tensor, Tensor], Tensor]
    centres: Tensor
    classes: Tensor
    geometry: Geometry
    span: tuple[float, float] | None = None

    def margins(self, points: Tensor, indices: Tensor) -> Tensor:
        """score(true) - max other at each point, (M,); negative where the class is changed."""
        return margins(self.scores(points, indices), self.classes[indices])


def margins(scores: Tensor, classes: Tensor) -> Tensor:
    """score(true) - max other of scores (M, K); (M,)."""
    own_class = classes[:, None]
    return scores.gather(1, own_class).squeeze(1) - scores.scatter(1, own_class, -torch.inf).amax(1)


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of a search: balls of radius `rho`, `restarts` of `steps` steps of `step_size` times the radius."""

    rho: float
    restarts: int
    steps: int
    step_size: float


@dataclass(slots=True)
class NearestChanges:
    """The nearest change of class of S samples: changes (S, ...), 0 where none; distances (S,), inf where none.

    A centre that is of another class already has distance 0.
    """

    changes: Tensor
    distances: Tensor

    @classmethod
    def none(cls, problem: Problem) -> NearestChanges:
        """Return the initial state: only the centres were evaluated. Raises UnsoundError where a margin is NaN."""
        all_indices = torch.arange(len(problem.centres), device=problem.centres.device)
        with torch.no_grad():
            centre_margins = problem.margins(problem.centres, all_indices)
        _refuse_nan(centre_margins)
        distances = torch.where(centre_margins < -ROUNDING, 0.0, torch.inf)
        return cls(torch.zeros_like(problem.centres), distances)

    def add(self, indices: Tensor, changes: Tensor, distances: Tensor) -> None:
        """Keep, per sample, the nearest of `changes` (H, ...) of samples `indices` (H,)."""
        self.distances.scatter_reduce_(0, indices, distances, "amin")
        best = (distances == self.distances[indices]).nonzero().flatten()
        # Of equally near ones the first, so that equal runs keep equal bytes.
        first = indices.new_full((len(self.distances),), len(indices))
        first.scatter_reduce_(0, indices[best], best, "amin")
        winners = first[first < len(indices)]
        self.changes[indices[winners]] = changes[winners]


def minimum_search(problem: Problem, plan: SearchSettings, generator: torch.Generator) -> NearestChanges:
    """Return the smallest change of class within `plan.rho`: first from the centre, then aimed from there, or from random starts.

    Each restart looks inside the norm found so far, in steps shortened in proportion; a restart that gains shrinks the
    ball of those beside it at once. What a group found is moved to the boundary by bisection towards the centre.
    """
    best = NearestChanges.none(problem)
    other_classes = _other_classes(problem)
    for restarts in _groups(plan.restarts):
        todo = (best.distances > 0).nonzero().flatten()
        indices = todo.repeat(len(restarts))
        radii = best.distances.clamp(max=plan.rho)[indices]
        aims = torch.cat([_aim(other_classes[todo], restart) for restart in restarts])
        from_centre = (aims >= 0) | (restarts[0] == 0)
        changes = _starts(problem, indices, radii, generator) * _column(~from_centre, problem.centres)
        hits = _bisect(problem, *_descend(problem, plan, Restarts(indices, changes, aims), best, minimum=True))
        best.add(*hits, problem.geometry.norm(hits[1]))
    return best


def bounded_search(problem: Problem, plan: SearchSettings, generator: torch.Generator) -> NearestChanges:
    """Any change of class within `plan.rho`, from random starts; the restarts of a sample end with its first success."""
    best = NearestChanges.none(problem)
    indices = (best.distances > 0).nonzero().flatten().repeat(plan.restarts)
    changes = _starts(problem, indices, torch.full_like(best.distances, plan.rho)[indices], generator)
    _descend(problem, plan, Restarts(indices, changes, torch.full_like(indices, -1)), best, minimum=False)
    return best


def _groups(restarts: int) -> Iterator[range]:
    """Restarts that run side by side: number 0, from the centre, alone; then GROUP at a time."""
    yield range(1)
    for first in range(1, restarts, GROUP):
        yield range(first, min(first + GROUP, restarts))


def _aim(other_classes: Tensor, restart: int) -> Tensor:
    """Return the class that a restart is aimed at, (S,): odd ones at one other class after the other, even ones at any, -1."""
    if restart % 2:
        return other_classes[:, restart // 2 % other_classes.shape[1]]
    return other_classes.new_full((len(other_classes),), -1)


def _other_classes(problem: Problem) -> Tensor:
    """Return the other classes of each sample that are worth an aim, nearest first to first order; int64 (S, at most RIVALS).

    Of the OTHER_CLASSES strongest at the centre, by score(true) - score(other class) over the norm of its gradient, as in DeepFool.
    """
    points, classes = problem.centres.clone().requires_grad_(), problem.classes[:, None]
    scores = problem.scores(points, torch.arange(len(points), device=points.device))
    k = min(OTHER_CLASSES, scores.shape[1] - 1)
    other_classes = scores.detach().scatter(1, classes, -torch.inf).topk(k, dim=1).indices
    gaps = scores.gather(1, classes) - scores.gather(1, other_classes)
    slopes = [torch.autograd.grad(gap.sum(), points, retain_graph=True)[0] for gap in gaps.unbind(1)]
    steepness = torch.stack([problem.geometry.dual(slope) for slope in slopes], 1).clamp_min(1e-30)
    return other_classes.gather(1, (gaps.detach() / steepness).argsort(1))


def _starts(problem: Problem, indices: Tensor, radii: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random direction for each restart, at a uniform share of its radius."""
    drawn = torch.randn(len(indices), *problem.centres.shape[1:], generator=generator)
    share = torch.rand(len(indices), generator=generator).to(radii)
    drawn = drawn.to(problem.centres)
    return drawn * _column(share * radii / problem.geometry.norm(drawn).clamp_min(1e-30), drawn)


@dataclass(frozen=True, slots=True)
class Restarts:
    """Restarts on their way: of samples `indices` (M,), at `changes` (M, ...), aimed at classes `aims` (M,), -1 for any."""

    indices: Tensor
    changes: Tensor
    aims: Tensor

    def keep(self, which: Tensor) -> Restarts:
        """Select the restarts of the mask `which` (M,)."""
        return Restarts(self.indices[which], self.changes[which], self.aims[which])


def _descend(
    problem: Problem, plan: SearchSettings, going: Restarts, best: NearestChanges, *, minimum: bool
) -> tuple[Tensor, Tensor]:
    """Run restarts to their end; (indices (H,), changes (H, ...)) where each first changed the class, also in `found`."""
    hits = [(going.indices[:0], going.changes[:0])]
    for step in range(plan.steps + 1):
        if not len(going.indices):
            break
        centres, changes = problem.centres[going.indices], going.changes
        points = centres + changes
        if problem.span is not None:
            points = points.clamp(*problem.span)
            changes = points - centres
        points.requires_grad_()
        scores, classes = problem.scores(points, going.indices), problem.classes[going.indices]
        loss = margins(scores, classes)
        hit = loss.detach() < -ROUNDING
        _refuse_nan(loss)
        aimed = scores.gather(1, classes[:, None]) - scores.gather(1, going.aims.clamp(min=0)[:, None])
        loss = torch.where(going.aims < 0, loss, aimed.squeeze(1))
        (gradient,) = torch.autograd.grad(loss.sum(), points)
        going = replace(going, changes=changes)
        if hit.any():
            hits.append((going.indices[hit], changes[hit]))
            best.add(*hits[-1], problem.geometry.norm(changes[hit]))
            on = ~hit if minimum else best.distances[going.indices].isinf()
            going, gradient = going.keep(on), gradient[on]
        if step < plan.steps:
            radii = best.distances[going.indices].clamp(max=plan.rho)
            moved = going.changes - _column(plan.step_size * radii, gradient) * problem.geometry.direction(gradient)
            going = replace(going, changes=problem.geometry.project(moved, radii))
    return torch.cat([indices for indices, _ in hits]), torch.cat([changes for _, changes in hits])


def _bisect(problem: Problem, indices: Tensor, changes: Tensor) -> tuple[Tensor, Tensor]:
    """Move changes (H, ...) of samples `indices` towards the centre for as long as the class stays changed."""
    low, high = torch.zeros(len(indices)).to(changes), torch.ones(len(indices)).to(changes)
    with torch.no_grad():
        for _ in range(BISECTIONS if len(indices) else 0):
            middle = (low + high) / 2
            points = problem.centres[indices] + changes * _column(middle, changes)
            changed = problem.margins(points, indices) < -ROUNDING
            high, low = torch.where(changed, middle, high), torch.where(changed, low, middle)
    return indices, changes * _column(high, changes)


def _refuse_nan(values: Tensor) -> None:
    if values.isnan().any():
        raise UnsoundError(
            "the classifier or the generator gives NaN inside the search; the minimum over such scores is undefined"
        )
