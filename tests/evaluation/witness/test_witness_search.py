"""The witness's searches: a linear model is broken exactly where it can be, and no sample depends on the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.distances import DISTANCE
from windtunnel.evaluation.witness.balls import Ball
from windtunnel.evaluation.witness.inner import inner_classifier
from windtunnel.evaluation.witness.search import Target, WitnessResult, search

SHAPE, N = (1, 6, 6), 40
EPSILON = {Norm.LINF: 0.06, Norm.L2: 0.3, Norm.L1: 0.7, Norm.L0: 1.0}


def linear() -> nn.Module:
    """A linear model of two classes, its plane through the middle of the range."""
    generator = torch.Generator().manual_seed(5)
    layer = nn.Linear(36, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, 36, generator=generator))
        layer.bias.copy_(-0.5 * layer.weight.sum(1))
    return nn.Sequential(nn.Flatten(), layer)


def target_of(module: nn.Module, ball: Ball, *, gradients: bool = True) -> Target:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    classifier = Classifier(module.eval(), 2, SHAPE, frozenset(Capability), "digest", "test")
    known = samples(seed=9)
    inner = inner_classifier(classifier, known, classifier.predict(known)) if gradients else None
    return Target(classifier, ball, gradients, False, None, inner, known, classifier.predict(known))


def samples(n: int = N, seed: int = 0) -> Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def searched(target: Target, inputs: Tensor, passes: int = 10**6, seeds: range | None = None) -> WitnessResult:
    labels = target.classifier.predict(inputs)
    return search(target, inputs, labels, seeds or range(len(inputs)), passes)


def can_be_broken(module: nn.Module, ball: Ball, inputs: Tensor) -> Tensor:
    """Exactly: the margin at the point of the ball that lowers it most."""
    weight, bias = module[1].weight, module[1].bias
    labels = module(inputs).argmax(1)
    slope = (weight[1 - labels] - weight[labels]).view_as(inputs)
    worst = ball.maximise(slope, inputs)
    return (worst * slope).flatten(1).sum(1) + bias[1 - labels] - bias[labels] > 0


@pytest.mark.parametrize("norm", list(DISTANCE))
def test_a_linear_model_is_broken_exactly_where_it_can_be(norm: Norm) -> None:
    module, ball, inputs = linear(), Ball(norm, EPSILON[norm]), samples()
    target = target_of(module, ball)
    found, truth = searched(target, inputs), can_be_broken(module, ball, inputs)
    assert 5 < int(truth.sum()) < N - 5
    assert torch.equal(found.broken, truth)
    assert ball.contains(found.examples[found.broken], inputs[found.broken]).all()


@pytest.mark.parametrize("norm", list(DISTANCE))
def test_without_gradients_most_of_what_can_be_broken_is(norm: Norm) -> None:
    module, ball, inputs = linear(), Ball(norm, EPSILON[norm]), samples()
    found, truth = searched(target_of(module, ball, gradients=False), inputs), can_be_broken(module, ball, inputs)
    assert not (found.broken & ~truth).any()
    assert int(found.broken.sum()) >= 0.5 * int(truth.sum())


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("norm", list(DISTANCE))
def test_a_sample_does_not_depend_on_the_others(norm: Norm, gradients: bool) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 2)).double()
    target, inputs = (
        target_of(nn.Sequential(_Double(), module), Ball(norm, EPSILON[norm]), gradients=gradients),
        samples(),
    )
    together = searched(target, inputs)
    alone = [searched(target, inputs[i : i + 1], seeds=range(i, i + 1)) for i in range(0, N, 4)]
    assert torch.equal(together.broken[::4], torch.cat([one.broken for one in alone]))
    torch.testing.assert_close(together.examples[::4], torch.cat([one.examples for one in alone]))


class _Double(nn.Module):
    """Double precision, in which the size of a batch rounds nothing away that matters."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double()


@pytest.mark.parametrize("passes", [0, 10, 500, 3000])
def test_no_more_passes_are_made_than_allowed(passes: int) -> None:
    class Counting(nn.Module):
        made = 0

        def forward(self, x: Tensor) -> Tensor:
            Counting.made += len(x)
            return torch.stack([x.flatten(1).sum(1) * 0, x.flatten(1).sum(1) * 0 - 1], 1)

    target = target_of(Counting(), Ball(Norm.LINF, 0.1))
    labels, Counting.made = torch.zeros(N, dtype=torch.int64), 0
    found = search(target, samples(), labels, range(N), passes)
    assert int(found.passes.sum()) <= passes
    assert Counting.made <= int(found.passes.sum())
    assert not found.broken.any()


def test_one_lucky_draw_of_a_random_model_breaks_nothing() -> None:
    class Lucky(nn.Module):
        """Wrong in one answer of ten, whatever it is asked."""

        def forward(self, x: Tensor) -> Tensor:
            wrong = (torch.rand(len(x)) < 0.1).float() + 0 * x.flatten(1).sum(1)
            return torch.stack([1 - wrong, wrong], 1)

    torch.manual_seed(0)
    target = replace(target_of(Lucky(), Ball(Norm.LINF, 0.1)), is_random=True)
    found = search(target, samples(), torch.zeros(N, dtype=torch.int64), range(N), 10**6)
    assert int(found.broken.sum()) <= 2


def test_a_model_without_a_derivative_is_searched_without_it() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return linear()(x.detach())

    ball, inputs = Ball(Norm.LINF, 0.06), samples()
    assert int(searched(target_of(Cut(), ball), inputs).broken.sum()) >= 3


class DeadAtTheEnds(nn.Module):
    """A linear model that reads pixels near black and white as black and white: there it has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(((x - 0.05) / 0.9).clamp(0, 1))


def test_the_first_search_leaves_a_dead_zone_at_the_ends_of_the_range() -> None:
    ends = samples().round() * 0.96 + 0.02 * samples(seed=1)  # in the dead zone, every pixel of them
    module, ball = DeadAtTheEnds(), Ball(Norm.LINF, 0.1)
    result = searched(target_of(module, ball), ends)
    moved = (ends - 0.5).sign() * -0.05  # as far as the dead zone takes
    can_be = can_be_broken(module.layers, Ball(Norm.LINF, 0.02 / 0.9), ((ends + moved - 0.05) / 0.9).clamp(0, 1))
    assert can_be.any()
    by_gradient = torch.tensor([method == "gradient of the margin" for method in result.methods])
    assert (by_gradient & can_be).sum() >= 0.9 * can_be.sum()


def test_logits_that_are_not_finite_break_a_sample() -> None:
    class Overflowing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = x.flatten(1).sum(1)
            return torch.stack([total * 0 + 1, (total > 18).float() * torch.nan], 1).nan_to_num(nan=torch.nan)

    inputs = torch.full((4, *SHAPE), 0.49)
    target = target_of(Overflowing(), Ball(Norm.LINF, 0.1), gradients=False)
    found = search(target, inputs, torch.zeros(4, dtype=torch.int64), range(4), 10**5)
    assert found.broken.all()


class Around(nn.Module):
    """The linear model between a function of its input and one of its logits."""

    def __init__(self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.before, self.after = linear(), before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.network(self.before(x)))


def same(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("before", "after"),
    [(lambda x: (x * 15).round() / 15, same), (same, lambda z: z.detach()), (lambda x: 2 * x.detach() - x, same),
     (lambda x: (((x - 0.4) / 0.3) * 15).round() / 15 * 0.3 + 0.4, lambda z: (z * 50).round())],
    ids=["rounding", "detached", "wrong sign", "rounding after normalisation, large rounded logits"],
)  # fmt: skip
def test_gradients_of_the_network_inside_get_past_what_stands_around_it(before, after) -> None:
    ball, inputs = Ball(Norm.LINF, EPSILON[Norm.LINF]), samples()
    target = target_of(Around(before, after), ball)
    assert target.inner is not None
    found = searched(target, inputs)
    assert "gradient of the inner network" in found.methods
    truth = can_be_broken(linear(), ball, inputs)
    assert int(found.broken.sum()) >= 0.8 * int(truth.sum())
    answers = target.classifier.predict(found.examples[found.broken])  # of the model itself
    assert (answers != target.classifier.predict(inputs[found.broken])).all()


def test_a_normalisation_alone_hides_no_network() -> None:
    for module in (Around(lambda x: (x - 0.4) / 0.3, same), linear()):
        assert target_of(module, Ball(Norm.L2, 0.3)).inner is None


def test_hooks_that_look_for_the_network_inside_leave_the_model() -> None:
    module = Around(lambda x: x.round(), same)
    target_of(module, Ball(Norm.L2, 0.3))
    assert not any(part._forward_hooks for part in module.modules())


class Halved(Around):
    """The linear model in bfloat16, and its logits detached."""

    def __init__(self) -> None:
        super().__init__(same, lambda z: z.detach().float())
        self.network.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16())


class NeedsMore(Around):
    """A network inside that cannot be called on images alone."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.layer = linear()

        def forward(self, x: Tensor, scale: float) -> Tensor:
            return self.layer(self.flat(x)) * scale

    def __init__(self) -> None:
        super().__init__(same, same)
        self.network = NeedsMore.Scaled()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, 2.0)


class NotANumber(Around):
    """Gradients are NaN everywhere: those of a branch that is not taken."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return torch.where(logits > torch.inf, logits * torch.nan, logits)


@pytest.mark.parametrize("module", [Halved(), NeedsMore(), NotANumber(same, same)], ids=lambda m: type(m).__name__)
def test_odd_networks_inside_stop_no_search(module: nn.Module) -> None:
    inputs = samples()
    target = target_of(module, Ball(Norm.LINF, 2 * EPSILON[Norm.LINF]))
    assert (target.inner is None) is isinstance(module, NeedsMore)
    assert int(searched(target, inputs).broken.sum()) > 0.3 * N
