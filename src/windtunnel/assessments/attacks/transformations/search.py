"""Search the worst parameters of a transformation: on a grid, along gradients, at random.

Source: grid and random search of rotations and translations: Engstrom et al. 2019, arXiv 1712.02779; patches: Brown et al. 2017,
arXiv 1712.09665; differential evolution: Storn and Price 1997; patches without gradients: Croce et al. 2022 (Sparse-RS),
arXiv 2006.12834. The functions named as algorithms improve a `ParameterSearch`; their keywords are the `params` of an entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Request
from windtunnel.assessments.attacks.rows import FIT_SAMPLES
from windtunnel.core.batches import evenly_spaced
from windtunnel.core.classifier import forward_samples
from windtunnel.core.contracts import Json
from windtunnel.core.criterion import Criterion
from windtunnel.core.transformations import Transformation, transformation_of
from windtunnel.core.transformed import transform, unit_tensors
from windtunnel.registry.plugins import library_of

_FIRST_STEP, _LAST_STEP = 0.4, 0.01  # of a gradient search, in half ranges
_FIRST_CHANGE, _LAST_CHANGE = 0.5, 0.05  # of a patch's values
_SURE = 1.0  # a margin of logits beyond which a shared patch gains nothing by a sample
_LEAST_LOSS = 1e-30  # of a point that breaks its sample
_WEIGHT, _CROSSED = 0.7, 0.9  # of differences, share of the parameters that change: of differential evolution
_EXPLORED = 0.4  # of the queries of an evolving patch: at random places, with random content
_AT_ONCE = 64  # points of a sample that are tried before it is asked whether it is broken


class Transformed(NamedTuple):
    """Result of an attack: images float32 (n, C, H, W), made from the parameters float64 (n, P)."""

    images: Tensor
    parameters: Tensor


@dataclass
class ParameterSearch:
    """n samples under attack, and the worst point known of each.

    best: (n,), best wrong logit minus the label's at that point, positive where it is broken. units: (n, P), parameters in half
    ranges from the identity, or side, row and column of a square. content: values that a patch takes, (n, C, H, W). batch_size:
    the most samples of which gradients are taken at once; None for all.
    """

    transformation: Transformation
    epsilon: float
    inputs: Tensor
    labels: Tensor
    model: nn.Module
    criterion: Criterion
    best: Tensor
    units: Tensor
    content: Tensor
    batch_size: int | None = None

    @classmethod
    def of(cls, request: Request, model: nn.Module, criterion: Criterion) -> ParameterSearch:
        """Pose the problem of a batch; nothing is tried yet."""
        transformation, inputs, epsilon = transformation_of(request.budget.norm), request.inputs, request.budget.epsilon
        assert transformation is not None
        assert epsilon is not None
        return cls.over(transformation, epsilon, inputs, request.labels, model, criterion)

    @classmethod
    def over(
        cls,
        transformation: Transformation,
        epsilon: float,
        inputs: Tensor,
        labels: Tensor,
        model: nn.Module,
        criterion: Criterion,
    ) -> ParameterSearch:
        """Pose the problem of some samples; nothing is tried yet."""
        best = inputs.new_full((len(inputs),), -torch.inf)
        units = inputs.new_zeros(len(inputs), len(transformation.names))
        return cls(transformation, epsilon, inputs, labels, model, criterion, best, units, inputs.clone())

    @property
    def surviving(self) -> Tensor:
        """Indices of the samples that no point tried so far breaks."""
        return (self.best <= 0).nonzero().flatten()

    @property
    def places(self) -> Tensor:
        """(M, 3): side, row and column of every square inside the image."""
        return places_of(self.transformation.side(self.epsilon), self.inputs)

    def parameters(self, units: Tensor) -> Tensor:
        """Parameters (m, P) in the units of their kinds."""
        if self.transformation.is_square:
            return units
        identity, half_ranges = (t.to(units.device) for t in unit_tensors(self.transformation, units.dtype))
        return identity + units * self.epsilon * half_ranges

    def losses(self, rows: Tensor, units: Tensor, content: Tensor | None = None) -> Tensor:
        """Return the losses (m,) of the samples `rows` (m,) under `units` (m, P), with `content` (m, C, H, W) inside a patch."""
        return self.margins(rows, transform(self.transformation, self.inputs[rows], self.parameters(units), content))

    def margins(self, rows: Tensor, images: Tensor) -> Tensor:
        """Return the losses (m,) of the samples `rows` (m,) as `images` (m, C, H, W)."""
        logits = self.model(images)
        losses = self.criterion.margin_loss(logits, self.labels[rows])
        is_broken = self.criterion.predict(logits.detach(), self.labels[rows]) != self.labels[rows]
        return torch.where(is_broken & ~(losses > 0), _LEAST_LOSS, losses)  # NaN, or another class draws level

    def note(self, rows: Tensor, units: Tensor, losses: Tensor, content: Tensor | None = None) -> None:
        """Store the points that raise the loss of the samples `rows` (m,), which are unique."""
        better = losses > self.best[rows]
        chosen = rows[better]
        self.best[chosen], self.units[chosen] = losses[better], units[better]
        if content is not None:
            self.content[chosen] = content[better]

    @torch.no_grad()
    def evaluate(self, rows: Tensor, units: Tensor, content: Tensor | None = None) -> Tensor:
        """Try the points units (m, q, P) of the samples `rows` (m,); return their losses (m, q) and keep the worst.

        content: (m, C, H, W), the values of a patch, the same at all places of a sample.
        """
        m, q, _ = units.shape
        sample = torch.arange(m, device=rows.device).repeat_interleave(q)
        flat, parts = units.flatten(0, 1), []
        for at in torch.arange(m * q, device=rows.device).split(forward_samples(self.inputs)):
            values = None if content is None else content[sample[at]]
            parts.append(self.losses(rows[sample[at]], flat[at], values))
        losses = torch.cat(parts).view(m, q)
        worst, column = losses.max(1)
        self.note(rows, units[torch.arange(m, device=rows.device), column], worst, content)
        return losses

    def ascend(self, rows: Tensor, units: Tensor, steps: int) -> None:
        """Climb from the points `units` (m, P) of the samples `rows` (m,) by signed steps that shrink."""
        for step in torch.linspace(_FIRST_STEP, _LAST_STEP, steps).tolist():
            losses, gradient = self.with_gradient(self.losses, rows, units)
            self.note(rows, units, losses)
            units = (units + step * gradient.sign()).clamp(-1, 1)
        self.evaluate(rows, units[:, None])

    def paint(self, rows: Tensor, units: Tensor, content: Tensor, steps: int, *, moving: bool = False) -> None:
        """Climb in the content (m, C, H, W) of the patches at `units` (m, 3), and in their places where they are `moving`."""
        places, side = self.places, self.transformation.side(self.epsilon)
        reaches = torch.linspace(side if moving else 0, 0, steps).round().tolist()  # ever shorter moves
        for change, reach in zip(torch.linspace(_FIRST_CHANGE, _LAST_CHANGE, steps).tolist(), reaches, strict=True):
            images = transform(self.transformation, self.inputs[rows], units, content)
            losses, gradient = self.with_gradient(self.margins, rows, images)
            self.note(rows, units, losses, content)
            content = (content + change * self.pooled(gradient).sign()).clamp(0, 1)
            if reach:
                is_near = (places[:, 1:] - units[:, None, 1:]).abs().amax(2) <= reach
                gains = self.pooled(self.gains(rows, gradient, content))
                units = places[gains.masked_fill(~is_near, -torch.inf).argmax(1)]
        self.evaluate(rows, units[:, None], content)

    def gains(self, rows: Tensor, gradient: Tensor, content: Tensor) -> Tensor:
        """Return by how much a patch at each of the M places raises the losses, to first order; (m, M).

        gradient: of the loss by the image, (m, C, H, W).
        """
        side, rise = (
            self.transformation.side(self.epsilon),
            (gradient * (content - self.inputs[rows])).sum(1, keepdim=True),
        )
        return nn.functional.avg_pool2d(rise, side, 1).flatten(1) * side**2

    def pooled(self, values: Tensor) -> Tensor:
        """Return the values (m, ...) by which each of m samples decides where its patch goes next."""
        return values

    def starts(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return `count` places, (m, count, 3), half of them by the gradient, and the content (m, C, H, W) of one step along it."""
        slopes, places = self.slopes(rows), self.places
        extreme = (self.pooled(slopes) > 0).to(slopes)
        gains = self.pooled(self.gains(rows, slopes, extreme))
        ranked = gains.topk(min(count // 2, len(places)), 1).indices
        grid = places[evenly_spaced(len(places), count - count // 2)].expand(len(rows), -1, -1)
        return torch.cat([places[ranked], grid], 1), extreme

    def slopes(self, rows: Tensor) -> Tensor:
        """Gradient of the loss at the clean samples `rows`, (m, C, H, W)."""
        return self.with_gradient(self.margins, rows, self.inputs[rows])[1]

    def with_gradient(
        self, function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, point: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the values (m,) of a function of the samples `rows` (m,) at a point (m, ...), and the gradient of their sum."""
        values, gradients = [], []
        size = self.batch_size or len(rows)
        for samples, start in zip(rows.split(size), point.detach().split(size), strict=True):
            with torch.enable_grad():
                leaf = start.clone().requires_grad_()
                losses = function(samples, leaf)
                gradients += torch.autograd.grad(losses.sum(), leaf)
            values.append(losses.detach())
        return torch.cat(values), torch.cat(gradients)


class SharedPatchSearch(ParameterSearch):
    """Samples that share one patch at one place: it is kept where it breaks more of them, or as many with larger losses."""

    def margins(self, rows: Tensor, images: Tensor) -> Tensor:
        """Return the losses (m,), up to where a sample counts as surely broken, so that the others decide."""
        return super().margins(rows, images).clamp(max=_SURE)

    def note(self, rows: Tensor, units: Tensor, losses: Tensor, content: Tensor | None = None) -> None:
        """Store the patch where all the samples `rows` together are worse off."""
        assert content is not None
        if _of_all(losses) > _of_all(self.best):
            self.best, self.units, self.content = losses, units, content

    def pooled(self, values: Tensor) -> Tensor:
        """Return the mean of the values for each sample."""
        return values.mean(0, keepdim=True).expand_as(values)


def _of_all(losses: Tensor) -> tuple[int, float]:
    """Return (number broken, mean loss) of a shared patch: more is worse for the model."""
    return int((losses > 0).sum()), float(losses.mean())


@dataclass(frozen=True, slots=True)
class SharedPatch:
    """A patch for all samples. content: (1, C, H, W), its values at its place. square: (1, 3), side, row and column.

    fitted_on: the samples that it was fitted on, and how many of them it breaks.
    """

    content: Tensor
    square: Tensor
    fitted_on: dict[str, Json]

    @classmethod
    def fit(
        cls, request: Request, ids: Sequence[str], model: nn.Module, criterion: Criterion, batch_size: int
    ) -> SharedPatch:
        """Fit a patch to the samples `ids` of a request, by `universal`; gradients are taken of `batch_size` at once."""
        problem = SharedPatchSearch.of(request, model, criterion)
        problem.batch_size = batch_size
        universal(problem, **{k: v for k, v in request.arguments.items() if k != FIT_SAMPLES})  # type: ignore[arg-type]
        fitted_on: dict[str, Json] = {"n": len(ids), "n_broken": _of_all(problem.best)[0], "samples": list(ids)}
        return cls(problem.content[:1].cpu(), problem.units[:1].cpu(), fitted_on)

    @property
    def values(self) -> Tensor:
        """The values of the patch, (C, side, side)."""
        side, row, column = self.square[0].int().tolist()
        return self.content[0, :, row : row + side, column : column + side].clone()


def universal(problem: SharedPatchSearch, places: int = 40, starts: int = 4, steps: int = 60) -> None:
    """Fit one patch, its content and its place, to all samples: `steps` gradient steps from the `starts` best of `places` places."""
    rows = torch.arange(len(problem.inputs), device=problem.inputs.device)
    candidates, extreme = problem.starts(rows, places)
    ranks = range(candidates.shape[1])  # small images have fewer places
    tried = [_of_all(problem.evaluate(rows, candidates[:, k, None], extreme)[:, 0]) for k in ranks]
    for k in sorted(ranks, key=lambda k: tried[k], reverse=True)[:starts]:
        problem.paint(rows, candidates[:, k], extreme, steps, moving=True)


def places_of(side: int, images: Tensor) -> Tensor:
    """(M, 3), as `images` (..., H, W): side, row and column of every square of `side` pixels inside an image."""
    height, width = images.shape[-2:]
    corners = itertools.product(range(height - side + 1), range(width - side + 1))
    return images.new_tensor([(side, row, column) for row, column in corners])


def perturb(request: Request, model: nn.Module, criterion: Criterion) -> Transformed:
    """Run the algorithm of a request on its batch."""
    problem = ParameterSearch.of(request, model, criterion)
    algorithm: Callable[..., None] = library_of("transformations", "attacks").algorithm(request.row.algorithm.name)  # type: ignore[assignment]
    algorithm(problem, **request.arguments)
    parameters = problem.parameters(problem.units.double())
    content = problem.content if problem.transformation.is_patch else None
    return Transformed(transform(problem.transformation, problem.inputs, parameters, content), parameters)


def grid(problem: ParameterSearch, points: int = 151, starts: int = 4, refine: int = 5) -> None:
    """Try a grid of about `points` points, then finer ones around the `starts` worst, `refine` times; an occlusion at every place."""
    all_rows = torch.arange(len(problem.inputs), device=problem.inputs.device)
    if problem.transformation.is_square:
        _try_all(problem, all_rows, problem.places)
        return
    p = len(problem.transformation.names)
    side = max(3, round(points ** (1 / p)) | 1)  # odd, so that the identity is on the grid
    ticks = torch.linspace(-1, 1, side, device=problem.inputs.device)
    lattice = torch.cartesian_prod(*[ticks] * p).view(-1, p)
    losses = _try_all(problem, all_rows, lattice)
    rows = problem.surviving
    if not len(rows) or not refine:
        return
    units = lattice[losses[rows].topk(min(starts, len(lattice)), 1).indices]
    around = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], device=units.device)] * p).view(-1, p)
    step = 2 / (side - 1)
    for _ in range(refine):
        step /= 2
        candidates = (units[:, :, None] + step * around).clamp(-1, 1)  # (m, starts, 3^p, p)
        tried = problem.evaluate(rows, candidates.flatten(1, 2)).view(candidates.shape[:3])
        chosen = tried.argmax(2)[:, :, None, None].expand(-1, -1, 1, p)
        units = candidates.gather(2, chosen).squeeze(2)
        alive = problem.best[rows] <= 0
        rows, units = rows[alive], units[alive]
        if not len(rows):
            return


def gradient(problem: ParameterSearch, restarts: int = 10, steps: int = 20, places: int = 150) -> None:
    """Climb from `restarts` random points (the first: the identity) by `steps` gradient steps each.

    A patch starts at the `restarts` of `places` places at which one step from the clean sample does most, half of them those that
    the gradient ranks first, the others a grid; its content and its place follow the gradient.
    """
    device, p = problem.inputs.device, len(problem.transformation.names)
    if problem.transformation.is_square:
        _patch_by_places(problem, torch.arange(len(problem.inputs), device=device), places, restarts, steps)
        return
    for number in range(restarts):
        rows = torch.arange(len(problem.inputs), device=device) if not number else problem.surviving
        if not len(rows):
            return
        start = torch.rand(len(problem.inputs), p).to(problem.inputs)[rows] * 2 - 1
        problem.ascend(rows, start if number else torch.full_like(start, 1e-3), steps)


def random(problem: ParameterSearch, queries: int = 200) -> None:
    """Try `queries` random points; of a patch random places, its values black or white at random."""
    shape, p = problem.inputs.shape, len(problem.transformation.names)
    places = problem.places if problem.transformation.is_square else None
    for number in range(queries):
        rows = torch.arange(shape[0], device=problem.inputs.device) if not number else problem.surviving
        if not len(rows):
            return
        content = None
        if places is not None:
            units = places[torch.randint(len(places), (shape[0],))][rows]
            if problem.transformation.is_patch:
                content = torch.randint(2, shape).to(problem.inputs)[rows]
        else:
            units = torch.rand(shape[0], p).to(problem.inputs)[rows] * 2 - 1
        problem.evaluate(rows, units[:, None], content)


def evolution(problem: ParameterSearch, queries: int = 200, population: int = 10) -> None:
    """Improve `population` points by differential evolution; of a patch one tile of black and white, and its place."""
    if problem.transformation.is_square:
        _evolve_patch(problem, queries)
        return
    every = torch.arange(len(problem.inputs), device=problem.inputs.device)
    p = len(problem.transformation.names)
    units = torch.rand(len(every), population, p).to(problem.inputs) * 2 - 1
    losses = problem.evaluate(every, units)
    for _ in range(1, queries // population):
        rows = problem.surviving
        if not len(rows):
            return
        parents = units[rows]
        order = torch.rand(len(rows), population, population).argsort(2).to(rows.device)
        base, plus, minus = (parents.gather(1, order[:, :, k, None].expand(-1, -1, p)) for k in range(3))
        is_crossed = torch.rand(parents.shape).to(parents) < _CROSSED
        trials = torch.where(is_crossed, base + _WEIGHT * (plus - minus), parents).clamp(-1, 1)
        tried = problem.evaluate(rows, trials)
        is_better = tried > losses[rows]
        units[rows] = torch.where(is_better[:, :, None], trials, parents)
        losses[rows] = torch.where(is_better, tried, losses[rows])


def _evolve_patch(problem: ParameterSearch, queries: int) -> None:
    """Move the best patch of each sample, or paint a rectangle of it black or white, where that raises the loss."""
    (n, channels, height, width), side = problem.inputs.shape, problem.transformation.side(problem.epsilon)
    every = torch.arange(n, device=problem.inputs.device)
    last = problem.places[-1]
    tiles = torch.randint(2, (n, channels, side, side)).to(problem.inputs)
    ticks = torch.arange(side, device=every.device)
    for number in range(queries):
        rows = problem.surviving if number else every
        if not len(rows):
            return
        m, units, trials = len(rows), problem.units[rows], tiles[rows]
        if number < _EXPLORED * queries:
            units = torch.rand(m, 3).to(units) * (last + 1)
            trials = torch.randint(2, trials.shape).to(trials)
        elif number % 2:
            units = units + torch.randn(m, 3).to(units) * (1 + (1 - number / queries) * last / 4)  # ever shorter moves
        else:
            ends = torch.randint(side, (2, m, 2)).to(rows.device).sort(0).values
            painted_rows, painted_columns = (
                (ticks >= ends[0, :, k, None]) & (ticks <= ends[1, :, k, None]) for k in (0, 1)
            )
            is_painted = painted_rows[:, None, :, None] & painted_columns[:, None, None, :]
            trials = torch.where(is_painted, torch.randint(2, (m, channels, 1, 1)).to(trials), trials)
        units = units.floor().clamp(min=0).minimum(last)
        units[:, 0] = side
        row, column = (
            (torch.arange(size, device=rows.device) - units[:, k, None].long()) % side
            for k, size in ((1, height), (2, width))
        )
        content = trials[torch.arange(m, device=rows.device)[:, None, None], :, row[:, :, None], column[:, None]]
        is_better = problem.evaluate(rows, units[:, None], content.movedim(3, 1))[:, 0] >= problem.best[rows]
        tiles[rows[is_better]] = trials[is_better]


def _try_all(problem: ParameterSearch, rows: Tensor, units: Tensor, content: Tensor | None = None) -> Tensor:
    """Try the points units (q, P), or (m, q, P), on the samples `rows`, a few at once on those not broken yet.

    Returns:
        The losses (m, q), -inf for not tried.

    """
    units = units.expand(len(rows), *units.shape[-2:])
    losses = problem.inputs.new_full(units.shape[:2], -torch.inf)
    for at in torch.arange(units.shape[1], device=units.device).split(_AT_ONCE):
        alive = (problem.best[rows] <= 0).nonzero().flatten()
        if not len(alive):
            break
        values = None if content is None else content[alive]
        part = problem.evaluate(rows[alive], units[alive[:, None], at], values)
        losses[alive[:, None], at] = part
    return losses


def _patch_by_places(problem: ParameterSearch, rows: Tensor, count: int, starts: int, steps: int) -> None:
    """Search a patch from the `starts` of `count` places at which one step along the clean gradient does most."""
    places, extreme = problem.starts(rows, count)
    order = _try_all(problem, rows, places, extreme).topk(min(starts, places.shape[1]), 1).indices
    for number in range(order.shape[1]):
        alive = (problem.best[rows] <= 0).nonzero().flatten()
        if not len(alive):
            return
        problem.paint(rows[alive], places[alive, order[alive, number]], extreme[alive], steps, moving=True)
