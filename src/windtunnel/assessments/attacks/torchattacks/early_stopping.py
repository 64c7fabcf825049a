"""APGD, FAB and Square that leave a sample once it is broken, or once its margin falls too slowly to reach zero in time."""

import math
from collections.abc import Callable

import torch
import torchattacks
from torch import Tensor

from windtunnel.assessments.attacks.torchattacks.nearest_fab import NearestFAB
from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance

# (shares of the work after which a sample may be left, factor of safety): APGD gains nothing before its steps were halved twice, Square
# begins with its largest squares.
OF_APGD = (1 / 2, 2 / 3), 5.0
OF_FAB = (0.2, 0.4), 5.0
OF_SQUARE = (0.1, 0.2, 0.4), 2.0
STEPS_TO_MOVE, STILL = 3, 1e-6  # steps after which a point that has not moved by more is left
_FAR = 1e9  # a distance for points that are no adversarial example
CERTAIN = 0.01  # of the spread of the logits: a break this clear does not depend on the batch that it is evaluated in


def is_hopeless(margins: Tensor, before: Tensor, done: int, total: int, safety: float) -> Tensor:
    """Tell for which samples a search will end without an adversarial example, if its margins go on to fall as they do.

    The gain of the last doubling of the work is taken as that of each doubling to come, times `safety`: searches slow down, so
    that few of the samples that are left would have been broken.

    Args:
        margins: The lowest margin of each sample so far, float (n,); below 0 it is broken.
        before: The same after half of the work done, float (n,).
        done: Steps or queries so far.
        total: Steps or queries in all.
        safety: At least 1.

    Returns:
        Bool (n,).
    """
    return margins - safety * (before - margins) * math.log2(total / done) > 0


class Watched:
    """The samples of one search: which are still searched, and the lowest margin of each so far.

    Attributes:
        rows: The samples that are searched, int64 (m,).
        lowest: The lowest margin of each sample so far, float (n,).
    """

    def __init__(self, count: int, total: int, rule: tuple[tuple[float, ...], float], device: torch.device) -> None:
        self.rows = torch.arange(count, device=device)
        self.lowest = torch.full((count,), torch.inf, device=device)
        shares, self._safety = rule
        self._total, self._looks = total, {max(2, round(share * total)) for share in shares}
        self._halves = {look // 2 for look in self._looks}
        self._before, self._done = self.lowest, 0
        self._first: Tensor | None = None
        self._moved = torch.zeros(count, dtype=torch.bool, device=device)

    def update(self, margins: Tensor, ended: Tensor, points: Tensor | None = None) -> Tensor:
        """Take the margins of `rows`, float (m,), after one more step; leave those that `ended` and those without hope.

        Given the points of a search by gradients, (m, C, H, W), those that do not move are without hope: the gradient is zero.

        Returns:
            Whether each of `rows` is left without hope, bool (m,).
        """
        self.lowest[self.rows] = torch.minimum(self.lowest[self.rows], margins)
        lowest, hopeless = self.lowest[self.rows], torch.zeros_like(ended)
        if points is not None and self._done <= STEPS_TO_MOVE:
            self._first = points.clone() if self._first is None else self._first
            self._moved[self.rows] |= (points - self._first[self.rows]).abs().flatten(1).amax(1) > STILL
            if self._done == STEPS_TO_MOVE:
                hopeless = ~self._moved[self.rows]
        if self._done in self._looks:
            hopeless = hopeless | is_hopeless(lowest, self._before[self.rows], self._done, self._total, self._safety)
        if self._done in self._halves:
            self._before = self.lowest.clone()
        self._done += 1
        self.rows = self.rows[~(ended | hopeless)]
        return hopeless


def answers_row_by_row(model: Callable[[Tensor], Tensor], inputs: Tensor, logits: Tensor) -> bool:
    """Return True if half of a batch (n, C, H, W) has the `logits` (n, K) of the batch: nothing is drawn or shared."""
    half = slice((len(inputs) + 1) // 2)
    in_batch = logits[half]
    with torch.no_grad():
        alone = model(inputs[half])
    scale = float(in_batch[in_batch.isfinite()].abs().max()) if in_batch.isfinite().any() else 0.0
    return torch.allclose(in_batch, alone, rtol=1e-4, atol=1e-6 * scale)


class _Ended(Exception):
    """No sample of the batch is searched any more."""


class _SearchOfRest:
    """Ask the model of APGD and APGD-T about the samples that are still searched.

    The library goes on with all of them, and is told the clean logits, which have no gradient, of the others. Where a
    model's answer to a sample depends on a draw or on the rest of the batch, the search is the library's.
    """

    _watched: Watched | None = None
    _is_row_by_row: bool | None = None

    def attack_single_run(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the best points (n, C, H, W), whether each sample stands (n,), its loss (n,), and its adversarial example."""
        ask: Callable[[Tensor], Tensor] = super().get_logits  # type: ignore[misc]  # of torchattacks
        if self._is_row_by_row is not False and self.eot_iter == 1:  # type: ignore[attr-defined]
            with torch.no_grad():
                self._clean = ask(x)
            self._is_row_by_row = self._is_row_by_row or answers_row_by_row(ask, x, self._clean)
        if not self._is_row_by_row:
            return super().attack_single_run(x, y)  # type: ignore[misc,no-any-return]
        rank = getattr(self, "target_class", None)
        self._labels, self._aims = y, None if rank is None else self._clean.sort(1).indices[:, -rank]
        self._examples, self._first = x.clone(), rank is not None
        self._watched = Watched(len(x), self.steps, OF_APGD, x.device)  # type: ignore[attr-defined]
        self._confidence = torch.zeros(len(x), device=x.device)  # by how much each sample is misclassified at best
        try:
            super().attack_single_run(x, y)  # type: ignore[misc]
        except _Ended:
            pass
        finally:
            self._watched = None
        return x, self._confidence == 0, self._confidence, self._examples

    def get_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits, (n, K), of samples that are left their clean ones."""
        ask: Callable[[Tensor], Tensor] = super().get_logits  # type: ignore[misc]
        watched = self._watched
        if watched is None:
            return ask(inputs)
        if self._first:  # APGD-T asks for its targets
            self._first = False
            return self._clean
        if not len(rows := watched.rows):
            raise _Ended
        logits = ask(inputs[rows])
        answer = self._clean.clone()
        answer[rows] = logits
        self._learn(inputs.detach(), logits.detach(), rows, watched)
        return answer

    def _learn(self, inputs: Tensor, logits: Tensor, rows: Tensor, watched: Watched) -> None:
        labels, spread = self._labels[rows, None], logits.amax(1) - logits.amin(1)
        of_label = logits.gather(1, labels)[:, 0]
        others = logits.scatter(1, labels, -torch.inf).amax(1)
        confidence = (others - of_label).clamp(min=0)
        surer = confidence > self._confidence[rows]
        self._confidence[rows[surer]], self._examples[rows[surer]] = confidence[surer], inputs[rows[surer]]
        towards = others if self._aims is None else logits.gather(1, self._aims[rows, None])[:, 0]
        watched.update(of_label - towards, confidence > CERTAIN * spread, inputs[rows])


class EarlyAPGD(_SearchOfRest, torchattacks.APGD):  # type: ignore[misc]  # torchattacks has no types
    """APGD (Croce, Hein 2020, arXiv 2003.01690) on the samples that it may still break."""


class EarlyAPGDT(_SearchOfRest, torchattacks.APGDT):  # type: ignore[misc]
    """Targeted APGD on the samples that it may still break; its progress is the margin to the class that it aims at."""


class EarlyFAB(NearestFAB):
    """FAB on the samples of which it may still find an example within epsilon; its progress is the distance beyond epsilon."""

    _watched: Watched | None = None
    _is_row_by_row: bool | None = None
    _slopes: tuple[Tensor, ...] | None = None  # differences of logits and their gradients, of each last step

    def attack_single_run(self, x: Tensor, y: Tensor, use_rand_start: bool = False) -> Tensor:
        """Return the nearest examples (n, C, H, W) of inputs that are classified correctly."""
        return self._run(super().attack_single_run, x, y, use_rand_start)

    def attack_single_run_targeted(self, x: Tensor, y: Tensor, use_rand_start: bool = False) -> Tensor:
        """Return the nearest examples (n, C, H, W) towards the class of rank `target_class`."""
        return self._run(super().attack_single_run_targeted, x, y, use_rand_start)

    def _run(self, run: Callable[..., Tensor], x: Tensor, y: Tensor, use_rand_start: bool) -> Tensor:
        if self._is_row_by_row is None:
            with torch.no_grad():
                self._is_row_by_row = answers_row_by_row(self.get_logits, x, self.get_logits(x))
        if not self._is_row_by_row:
            return run(x, y, use_rand_start=use_rand_start)
        self._starts, self._labels, self._nearest, self._slopes = x, y, x.clone(), None
        self._watched = Watched(len(x), self.steps, OF_FAB, x.device)
        try:
            run(x, y, use_rand_start=use_rand_start)
        except _Ended:
            pass
        finally:
            self._watched = None
        return self._nearest

    def get_diff_logits_grads_batch(self, imgs: Tensor, la: Tensor) -> tuple[Tensor, ...]:
        """Return differences of logits (n, K) and their gradients, of samples that are left those of their last step."""
        return self._of_rest(super().get_diff_logits_grads_batch, imgs, la)

    def get_diff_logits_grads_batch_targeted(self, imgs: Tensor, la: Tensor, la_target: Tensor) -> tuple[Tensor, ...]:
        """Return the difference of two logits (n, 1) and its gradient, of samples that are left those of their last step."""
        return self._of_rest(super().get_diff_logits_grads_batch_targeted, imgs, la, la_target)

    def _of_rest(self, ask: Callable[..., tuple[Tensor, ...]], *batch: Tensor) -> tuple[Tensor, ...]:
        if self._watched is None:
            return ask(*batch)
        if not len(rows := self._watched.rows):
            raise _Ended
        answer = ask(*(part[rows] for part in batch))
        if self._slopes is None:
            self._slopes = tuple(part.clone() for part in answer)
        for earlier, new in zip(self._slopes, answer, strict=True):
            earlier[rows] = new
        return self._slopes

    def _get_predicted_label(self, x: Tensor) -> Tensor:
        """Return the classes (n,); of samples that are left, and before the first step, their labels."""
        watched = self._watched
        if watched is None:
            predicted: Tensor = super()._get_predicted_label(x)
            return predicted
        classes = self._labels.clone()
        if self._slopes is None:
            return classes
        rows, points = watched.rows, x[watched.rows].detach()
        with torch.no_grad():
            logits = self.get_logits(points)
        labels, classes[rows] = self._labels[rows], logits.argmax(1)
        is_broken = classes[rows] != labels
        beyond = (distance(Norm(self.norm), points, self._starts[rows]) - self.eps).masked_fill(~is_broken, _FAR)
        nearer = is_broken & (beyond < watched.lowest[rows])
        self._nearest[rows[nearer]] = points[nearer]
        confidence, spread = logits.amax(1) - logits.gather(1, labels[:, None])[:, 0], logits.amax(1) - logits.amin(1)
        watched.update(beyond, (beyond <= 0) & (confidence > CERTAIN * spread), points)
        return classes


class EarlySquare(torchattacks.Square):  # type: ignore[misc]
    """Square (Andriushchenko et al. 2020, arXiv 1912.00049) on the samples that it may still break."""

    _watched: Watched | None = None

    def attack_single_run(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of each sample, (n,), and its last point, (n, C, H, W)."""
        with torch.no_grad():
            logits = self.get_logits(x)
        if answers_row_by_row(self.get_logits, x, logits):
            self._watched = Watched(len(x), self.n_queries, OF_SQUARE, x.device)
        try:
            return super().attack_single_run(x, y)  # type: ignore[no-any-return]
        finally:
            self._watched = None

    def margin_and_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return margin and loss of each point, (n,); a margin of minus infinity for a sample to leave, which the library evaluates."""
        margins, losses = super().margin_and_loss(x, y)
        if self._watched is not None:
            margins = margins.masked_fill(self._watched.update(margins, ~(margins > 0)), -torch.inf)
        return margins, losses
