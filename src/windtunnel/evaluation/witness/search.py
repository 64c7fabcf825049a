"""The witness's searches for adversarial examples: by gradients, at random, from other samples, and from a surrogate.

Every draw comes from a generator of its sample alone, so that a sample's result does not depend on which others are searched with it.
A pass is one evaluation of the model for one sample; a gradient costs two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from windtunnel.boundary.models.architectures import ARCHITECTURES
from windtunnel.boundary.models.load import fit
from windtunnel.boundary.models.loaders import TORCH, Loaded
from windtunnel.core.classifier import Classifier, forward_samples
from windtunnel.core.contracts import Norm
from windtunnel.core.criterion import Criterion
from windtunnel.core.dataset import Dataset
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.evaluation.witness.balls import Ball, largest_positive

# Passes over the model: a fifth of those of the run's attacks, or 20 samples x 200 passes where that is more.
_PASSES_AT_LEAST, _SHARE_OF_THE_RUN = 20 * 200, 0.2
_TRAINING_STEPS, _BATCH, _RATE = 40, 128, 8e-3  # of Adam, for the student that stands in for the model
STEPS = 10  # of one gradient search
SQUARES = (30, 60)  # queries of the two random searches
SURROGATE_STEPS = 20
INNER_LOOKS = 2  # points of an ascent through the inner network that the model itself is asked about
NEIGHBOURS = 3  # samples of other classes that each sample is moved towards
_MOMENTUM = 0.75
_TINY = 1e-30  # of the gradient: a direction where the model has none
_REPEATS = 9  # passes that confirm an example of a random model
SHORT_STEPS = 5  # of the gradient search of samples on which no other method is tried
SHORT_PASSES = 2 * SHORT_STEPS + 2  # of it, with the confirmation of an example
_PROMISING = 0.05  # share of the samples searched in full that the first method breaks, above which it is tried on more
_LARGEST_SHARE = 0.4  # of the elements that the first squares cover

Loss = Callable[[Tensor, Tensor], Tensor]


def witness_passes(attack_passes: float) -> int:
    """Return the most passes of a witness: a fifth of those of the run's attacks, or 20 x 200 where that is more."""
    return max(_PASSES_AT_LEAST, int(_SHARE_OF_THE_RUN * attack_passes))


@dataclass(frozen=True, slots=True)
class Target:
    """Subject of a search: a model, the ball around each sample, and other samples that the model puts into classes.

    is_random: whether the model's answers to one input differ. surrogate: another model, whose adversarial examples are tried.
    inner: the network inside the model, without what stands before and after it, whose gradients are tried.
    known_inputs (m, ...), known_classes int64 (m,): samples to move towards. gradients: whether the model has any.
    """

    classifier: Classifier
    ball: Ball
    gradients: bool
    is_random: bool
    surrogate: Classifier | None
    inner: Classifier | None
    known_inputs: Tensor
    known_classes: Tensor


@dataclass(frozen=True, slots=True)
class WitnessResult:
    """Result of a search over n samples: broken bool (n,), examples (n, ...), passes int64 (n,), and the method that broke each one.

    margins: best wrong logit less the label's of each example, so that rounding can be told from a real change of class; (n,).
    predictions int64 (n,): the class of each example, -1 where there is none or a logit is not finite.
    """

    methods: list[str]
    broken: Tensor
    examples: Tensor
    margins: Tensor
    predictions: Tensor
    passes: Tensor

    @classmethod
    def none(cls, inputs: Tensor) -> WitnessResult:
        """Return the state before a search of `inputs`: nothing tried, nothing broken."""
        n = len(inputs)
        margins, predictions = torch.full((n,), -torch.inf), torch.full((n,), -1)
        broken, passes = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
        return cls([""] * n, broken, inputs.clone(), margins, predictions, passes)

    @classmethod
    def joined(cls, parts: Sequence[WitnessResult]) -> WitnessResult:
        """Return the results of several searches, one after the other."""
        columns = (torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS)
        return cls([method for part in parts for method in part.methods], *columns)

    def at(self, mask: Tensor) -> WitnessResult:
        """Return the same of the samples at `mask` (n,) alone."""
        columns = (getattr(self, name)[mask] for name in _COLUMNS)
        return WitnessResult([self.methods[i] for i in mask.nonzero().flatten().tolist()], *columns)


_COLUMNS = ("broken", "examples", "margins", "predictions", "passes")


def search(
    target: Target, inputs: Tensor, labels: Tensor, seeds: Sequence[int], passes: int, in_full: int | None = None
) -> WitnessResult:
    """Search adversarial examples of the samples `inputs` (n, ...) with at most `passes` passes in all.

    The samples share one allowance: what a sample does not need goes to the others, those at the front first.

    Args:
        target: The model and what is known of it.
        inputs: float32 (n, ...).
        labels: int64 (n,).
        seeds: One of each sample.
        passes: The allowance.
        in_full: How many at the front are searched by every method, all where None. The rest are searched by fewer steps of the
            first method alone, and only where it broke some of those at the front.

    Returns:
        The result for the samples at the front, and for the rest where they were searched; 0 passes where the allowance ended.

    """
    n, size = len(inputs), forward_samples(inputs)
    front = n if in_full is None else min(in_full, n)

    def searching(start: int, end: int) -> _Searching:
        return _Searching(target, inputs[start:end], labels[start:end], seeds[start:end])

    batches = [searching(start, min(start + size, front)) for start in range(0, front, size)]
    states = [batch.state for batch in batches]

    def run(methods: Callable[[_Searching], None], batch: _Searching, waiting: int) -> None:
        """Run methods on a batch with its share of the passes that are left for the samples waiting."""
        passes_left = passes - sum(int(state.passes.sum()) for state in states)
        batch.left = passes_left * len(batch.inputs) // waiting
        methods(batch)

    for batch, start in zip(batches, range(0, front, size), strict=True):
        run(_Searching.first, batch, front - start)
    if sum(int(state.broken.sum()) for state in states) > _PROMISING * front:
        for start in range(front, n, size):
            further = searching(start, min(start + size, n))
            run(partial(_Searching.first, steps=SHORT_STEPS), further, n - start)
            states.append(further.state)
    for batch, start in zip(batches, range(0, front, size), strict=True):
        run(_Searching.others, batch, front - start)
    return WitnessResult.joined(states)


class _Searching:
    """The search of samples that fit into one batch; each method is run on those that the methods before it did not break."""

    def __init__(self, target: Target, inputs: Tensor, labels: Tensor, seeds: Sequence[int]) -> None:
        self.target, self.inputs, self.labels, self.left = target, inputs, labels, 0
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.state = WitnessResult.none(inputs)
        self.best, self.best_margin = inputs.clone(), torch.full((len(inputs),), -torch.inf)

    def first(self, steps: int = STEPS) -> None:
        """Run the cheapest method of a model with gradients."""
        if self.target.gradients:
            ascent = partial(self._ascend, loss=self.target.classifier.criterion.margin_loss, steps=steps)
            self._run("gradient of the margin", 2 * steps + 1, ascent)

    def others(self) -> None:
        """Run every other method."""
        gradient_passes, criterion = 2 * STEPS + 1, self.target.classifier.criterion
        has_gradients = self.target.gradients
        self._run("other samples", 2 * NEIGHBOURS, self._towards_others)
        if self.target.surrogate is not None:
            self._run("transfer", 1, self._transfer)
        if self.target.inner is not None:
            self._run("gradient of the inner network", gradient_passes + INNER_LOOKS, self._through_inner)
        self._run("random search", SQUARES[0], partial(self._squares, queries=SQUARES[0]))
        if has_gradients:
            towards = partial(self._ascend, loss=criterion.loss, at_random=True)
            self._run("gradient of cross entropy", gradient_passes, towards)
        self._run("random search", SQUARES[1], partial(self._squares, queries=SQUARES[1]))
        for rank in range(2 if has_gradients else 0):
            if self.target.inner is not None:
                towards = partial(self._through_inner, rank=rank)
                self._run("targeted gradient of the inner network", gradient_passes + INNER_LOOKS + 1, towards)
            self._run("targeted gradient", gradient_passes + 1, partial(self._ascend, loss=None, rank=rank))
        if not has_gradients:
            self._run("random search", 2 * SQUARES[1], partial(self._squares, queries=2 * SQUARES[1]))

    def _run(self, method: str, cost: int, run: Callable[[Tensor], None]) -> None:
        """Run a method on the unbroken samples that the passes left allow, and confirm what it broke."""
        confirmation = _REPEATS if self.target.is_random else 1
        rows = (~self.state.broken).nonzero().flatten()[: self.left // (cost + confirmation)]
        if not len(rows):
            return
        before = self.state.passes.sum()
        try:
            run(rows)
        except RuntimeError:  # the graph is interrupted, or has an operation without a derivative
            if "gradient" not in method:
                raise
        self._confirm(rows, method, confirmation)
        self.left -= int(self.state.passes.sum() - before)

    def _confirm(self, rows: Tensor, method: str, times: int) -> None:
        """Evaluate the best point of each sample again; it counts if it is in the ball and most predictions are wrong."""
        hopeful = rows[self.best_margin[rows] > 0]
        if not len(hopeful):
            return
        points, labels, state = self.best[hopeful], self.labels[hopeful], self.state
        criterion = self.target.classifier.criterion
        state.passes[hopeful] += times
        answers = [self.target.classifier.logits(points) for _ in range(times)]
        margins = torch.stack([_margin_or_broken(criterion, logits, labels) for logits in answers])
        wrong = ((margins > 0).double().mean(0) > 0.5) & self.target.ball.contains(points, self.inputs[hopeful])
        confirmed = hopeful[wrong]
        state.broken[confirmed], state.examples[confirmed] = True, points[wrong]
        # An odd number of answers, some perhaps infinite.
        state.margins[confirmed] = margins.sort(0).values[times // 2][wrong]
        likely = torch.stack(answers).mean(0)[wrong]
        state.predictions[confirmed] = criterion.predict(likely, labels[wrong])
        state.predictions[confirmed[~likely.isfinite().all(1)]] = -1
        for row in confirmed.tolist():
            state.methods[row] = method
        self.best_margin[hopeful[~wrong]] = -torch.inf

    def _margins(self, points: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Margin loss of the model at `points`, one pass each; infinite where a logit is not finite. (m,)."""
        self.state.passes[rows] += 1
        return _margin_or_broken(self.target.classifier.criterion, self.target.classifier.logits(points), labels)

    def _keep(self, rows: Tensor, points: Tensor, margins: Tensor) -> None:
        """Remember the points that are better than the best known ones of their samples."""
        better = margins > self.best_margin[rows]
        self.best[rows[better]], self.best_margin[rows[better]] = points[better], margins[better]

    def _ascend(
        self, rows: Tensor, loss: Loss | None, *, at_random: bool = False, rank: int = 0, steps: int = STEPS
    ) -> None:
        """Frank-Wolfe steps with momentum up `loss`, from the clean inputs, or from the best known points, moved at random.

        loss: None for the margin of the class that comes `rank` behind the best wrong one at the start.
        """
        clean, labels = self.inputs[rows], self.labels[rows]
        start = clean
        if at_random:
            noise = torch.stack([torch.rand(clean.shape[1:], generator=self.generators[i]) for i in rows.tolist()])
            corner = self.target.ball.maximise(2 * noise - 1, clean)
            # Points that transfer or random search have improved are near to what gradients alone do not reach.
            start = self.target.ball.project(self.best[rows] + (corner - clean) / 2, clean)
        if loss is None:
            self.state.passes[rows] += 1
            aim = _class_of_rank(self.target.classifier.logits(clean), labels, rank)

            def loss(z: Tensor, y: Tensor) -> Tensor:
                return _difference(aim[alive], z, y)

        alive = torch.arange(len(rows))
        iteration = ascend(self.target.classifier, self.target.ball, clean, labels, start, loss, steps)
        for points, margins, iterates in iteration:
            self._keep(rows[iterates], points, margins)
            alive = iterates[margins <= 0]
            self.state.passes[rows[iterates]] += 1
            self.state.passes[rows[alive]] += 1
        self.state.passes[rows[alive]] -= 1  # the last step takes no gradient

    def _towards_others(self, rows: Tensor) -> None:
        """Points of the balls nearest to the nearest samples that the model puts into another class, and to half of the way."""
        clean, labels = self.inputs[rows], self.labels[rows]
        distances = torch.cdist(clean.flatten(1), self.target.known_inputs.flatten(1))
        distances[labels[:, None] == self.target.known_classes] = torch.inf
        nearest = distances.topk(min(NEIGHBOURS, distances.shape[1]), largest=False)
        for column in range(nearest.indices.shape[1]):
            usable = nearest.values[:, column].isfinite()
            others = self.target.known_inputs[nearest.indices[usable, column]]
            for way in (1.0, 0.5):
                points = self.target.ball.project(clean[usable] + way * (others - clean[usable]), clean[usable])
                self._keep(rows[usable], points, self._margins(points, labels[usable], rows[usable]))

    def _transfer(self, rows: Tensor) -> None:
        """Examples that gradients of the surrogate give."""
        clean, labels, target = self.inputs[rows], self.labels[rows], self.target
        assert target.surrogate is not None
        loss, points = target.classifier.criterion.margin_loss, clean
        steps = ascend(target.surrogate, target.ball, clean, labels, clean, loss, SURROGATE_STEPS, to_the_end=True)
        for moved, _, _ in steps:
            points = moved
        self._keep(rows, points, self._margins(points, labels, rows))

    def _through_inner(self, rows: Tensor, rank: int | None = None) -> None:
        """Points on the way up the margin of the inner network, some of which the model itself is asked about.

        rank: the margin is that of the class that comes `rank` behind the best wrong one at the start, if it is given.
        """
        clean, labels, target = self.inputs[rows], self.labels[rows], self.target
        assert target.inner is not None
        loss: Loss = target.classifier.criterion.margin_loss
        if rank is not None:
            self.state.passes[rows] += 1
            loss = partial(_difference, _class_of_rank(target.inner.logits(clean), labels, rank))
        iteration = ascend(target.inner, target.ball, clean, labels, clean, loss, STEPS, to_the_end=True)
        for step, (points, _, _) in enumerate(iteration):
            self.state.passes[rows] += 2 if step < STEPS else 1
            if step and step * INNER_LOOKS % STEPS == 0:
                self._keep(rows, points, self._margins(points, labels, rows))

    def _squares(self, rows: Tensor, queries: int) -> None:
        """Random search over squares, from the best known points (after Square: Andriushchenko et al. 2020, arXiv 1912.00049)."""
        ball, clean, labels = self.target.ball, self.inputs[rows], self.labels[rows]
        proposals = _Proposals(ball, clean, [self.generators[i] for i in rows.tolist()], queries)
        point = proposals.start(self.best[rows])
        margin = self._margins(point, labels, rows)
        for step in range(1, queries):
            alive = (margin <= 0).nonzero().flatten()
            if not len(alive):
                break
            tried = proposals.at(step, point[alive], alive)
            margins = self._margins(tried, labels[alive], rows[alive])
            better = margins >= margin[alive]
            point[alive[better]], margin[alive[better]] = tried[better], margins[better]
        self._keep(rows, point, margin)


def ascend(
    classifier: Classifier,
    ball: Ball,
    clean: Tensor,
    labels: Tensor,
    start: Tensor,
    loss: Loss,
    steps: int,
    *,
    to_the_end: bool = False,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (points, margins, rows) of each Frank-Wolfe step up `loss`, for the samples still unbroken before it.

    to_the_end: go on with broken samples. Source: Chen, Zhou, Yi, Gu 2020, arXiv 1811.10828, with the momentum of MI-FGSM
    (Dong et al. 2018, arXiv 1710.06081).
    """
    device = classifier.device
    rows, points = torch.arange(len(clean)), start
    velocity = torch.zeros_like(clean)
    for step in range(steps + 1):
        x = points.to(device).clone().requires_grad_()
        logits = classifier.module(x)
        margins = _margin_or_broken(classifier.criterion, logits.detach().float().cpu(), labels[rows])
        yield points, margins, rows
        if step == steps:
            return
        alive = torch.ones_like(margins, dtype=torch.bool) if to_the_end else margins <= 0
        rows, points, velocity = rows[alive], points[alive], velocity[alive]
        if not len(rows):
            return
        (gradient,) = torch.autograd.grad(loss(logits[alive.to(device)], labels[rows].to(device)).sum(), x)
        slope = gradient.float().cpu()[alive].nan_to_num(0.0, 0.0, 0.0)
        scale = slope.flatten(1).abs().mean(1).clamp(min=1e-38).view(-1, *[1] * (slope.ndim - 1))
        velocity = _MOMENTUM * velocity + slope / scale
        if step == 0 and ball.norm is Norm.LINF:  # inwards, out of a dead zone at an end of the range
            velocity = velocity.where(velocity != 0, _TINY * ((ball.low + ball.high) / 2 - clean[rows]))
        corner = ball.maximise(velocity, clean[rows])
        points = corner if ball.norm is Norm.L0 else points + _step_length(step, steps) * (corner - points)


def _class_of_rank(logits: Tensor, labels: Tensor, rank: int) -> Tensor:
    """Return the class whose logit is `rank` places behind the best wrong one's, the last one where there are fewer; int64 (n,)."""
    wrong = logits.scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(rank + 2, logits.shape[1] - 1), dim=1).indices[:, -1]


def _difference(classes: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each class less that of its label, (n,)."""
    pair = logits.gather(1, torch.stack([classes.to(logits.device), labels], 1))
    return pair[:, 0] - pair[:, 1]


def _step_length(step: int, steps: int) -> float:
    """Share of the way to the corner: all of it first, a tenth in the end."""
    return 1.0 if step == 0 else max(0.1, 0.5 * (1 - step / steps))


def _margin_or_broken(criterion: Criterion, logits: Tensor, labels: Tensor) -> Tensor:
    """Margin loss (n,), positive where the predicted class is wrong; infinite where a logit is not finite, which is no answer."""
    margins = criterion.margin_loss(logits, labels)
    margins = margins.where((margins != 0) | criterion.is_correct(logits, labels), torch.finfo(margins.dtype).tiny)
    result: Tensor = margins.where(logits.isfinite().all(1), torch.inf)
    return result


class _Proposals:
    """The points that random search proposes: squares at random places, of sizes that shrink with the queries."""

    def __init__(self, ball: Ball, clean: Tensor, generators: Sequence[torch.Generator], queries: int) -> None:
        self.ball, self.clean, self.queries = ball, clean, queries
        self.images = clean if clean.ndim == 4 else clean[:, None, None, :]
        channels = self.images.shape[1]
        self.places = torch.stack([torch.rand(queries, 4, generator=g) for g in generators], 1)  # (queries, n, 4)
        self.signs = torch.stack([torch.rand(queries, channels, generator=g) for g in generators], 1) * 2 - 1
        width = self.images.shape[3]
        self.stripes = torch.stack([torch.rand(channels, 1, width, generator=g) for g in generators]) * 2 - 1

    def start(self, best: Tensor) -> Tensor:
        """Return the best known points; vertical stripes where none but the clean input is known."""
        stripes = self.ball.maximise(self.stripes.expand(self.images.shape).reshape(self.clean.shape), self.clean)
        unmoved = (best == self.clean).flatten(1).all(1).view(-1, *[1] * (best.ndim - 1))
        return torch.where(unmoved, stripes, best)

    def at(self, step: int, points: Tensor, rows: Tensor) -> Tensor:
        """Return the points that query `step` proposes in place of `points` (m, ...), the present points of the samples `rows`."""
        height, width = self.images.shape[2:]
        share = _LARGEST_SHARE / 2 ** (5 * step // self.queries)
        if self.ball.norm in (Norm.L1, Norm.L0):
            share /= 8
        high, wide = (max(1, round(side * share**0.5)) for side in (height, width))
        if height == 1:
            wide = max(1, round(width * share))
        squares = self.places[step][rows]
        rows_inside, columns_inside = _covered(squares[:, 0], height, high), _covered(squares[:, 1], width, wide)
        inside = rows_inside[:, :, None] & columns_inside[:, None, :]
        square = inside[:, None] * self.signs[step][rows][:, :, None, None].sign()
        clean, moved = self.images[rows], points.reshape(len(rows), *self.images.shape[1:])
        if self.ball.norm is Norm.LINF:
            moved = torch.where(inside[:, None], clean + self.ball.radius * square, moved)
        elif self.ball.norm is Norm.L0:
            moved = self._exchanged(moved, clean, inside, square, squares)
        else:
            order = 2 if self.ball.norm is Norm.L2 else 1
            unit = self.ball.radius / torch.linalg.vector_norm(square.flatten(1), order, dim=1).clamp(min=1e-12)
            moved = clean + 0.8 * (moved - clean) + unit[:, None, None, None] * square
        flat = self.clean[rows]
        return self.ball.project(moved.reshape(flat.shape), flat)

    def _exchanged(self, moved: Tensor, clean: Tensor, inside: Tensor, square: Tensor, square_mask: Tensor) -> Tensor:
        """Set elements of the square to an end of the range, and as many others back (after Sparse-RS, Croce et al. 2022)."""
        ends = torch.where(square > 0, self.ball.high, self.ball.low)
        fresh = torch.where(inside[:, None], ends, moved)
        k = int(self.ball.radius)
        # The changed elements of the square come first, then the other changed ones, in an order that the query decides.
        weights = torch.frac(torch.arange(fresh[0].numel()) * 0.6180339887 + square_mask[:, 2:3] * 97.0).view_as(fresh)
        priority = (fresh != clean) * (weights + inside[:, None] * 1.0 + 1e-3)
        is_kept = largest_positive(priority.flatten(1), k)
        return torch.where(is_kept.view_as(fresh), fresh, clean)


def _covered(corner: Tensor, side: int, length: int) -> Tensor:
    """Mask of the positions of a side that a square of this length covers, placed by a number in [0, 1); bool (m, side)."""
    first = (corner * (side - length + 1)).long().clamp(max=side - length)[:, None]
    positions = torch.arange(side)
    return (positions >= first) & (positions < first + length)


def train_student(
    inputs: Tensor, classes: Tensor, data: Dataset, device: torch.device, seed: int, noise: float
) -> Classifier:
    """Train a small surrogate on samples with the model's predictions, or their labels.

    The model is not queried (compare Papernot et al. 2017, arXiv 1602.02697, whose student asks it about points of its own).

    Of `inputs` (n, ...) with `classes` int64 (n,) a second copy gets uniform noise in [-noise, noise].
    """
    seed = derive_seed(seed, "student")
    generator = torch.Generator().manual_seed(seed)
    low, high = data.value_range
    shaken = (inputs + noise * (2 * torch.rand(inputs.shape, generator=generator) - 1)).clamp(low, high)
    small = not data.is_image or min(data.inputs.shape[2:]) < 3
    with seeded(seed):
        module = ARCHITECTURES["mlp" if small else "cnn"](tuple(inputs.shape[1:]), data.num_classes)
    _teach(module, torch.cat([inputs, shaken]), torch.cat([classes, classes]).clamp(min=0), generator)
    return fit(Loaded(module.eval(), TORCH, "student", "student of the model"), device, data)


_ADAM: dict[str, Any] = dict(amsgrad=False, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, maximize=False)


def _teach(module: nn.Module, inputs: Tensor, answers: Tensor, generator: torch.Generator) -> None:
    """Adam on the cross entropy of random batches, the rate rising in the first quarter and falling in the last.

    In its functional form: the first optimiser object of a process imports torch's compiler, which takes longer than all this.
    """
    weights: list[Tensor] = list(module.parameters())
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    counts = [torch.zeros(()) for _ in weights]
    for step in range(_TRAINING_STEPS):
        drawn = torch.randint(0, len(inputs), (_BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(module(inputs[drawn]), answers[drawn])
        gradients = torch.autograd.grad(loss, weights)
        rate = _RATE * min(1.0, 4 * (step + 1) / _TRAINING_STEPS, 4 * (1 - step / _TRAINING_STEPS))
        with torch.no_grad():
            adam(weights, list(gradients), means, squares, [], counts, lr=rate, **_ADAM)
