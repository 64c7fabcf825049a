"""The cascade's falsifier, and the examples that attacks have left on disk: a sample broken within the budget needs no certificate.

First PGD on the margin to the nearest other class, with restarts; then, for what stands, targeted at each other class in turn,
where the nearest one may be a dead end. Sources: Madry et al. 2018 (arXiv 1706.06083); Dong et al. 2018, momentum
(arXiv 1710.06081); Gowal et al. 2019, multi-targeted (arXiv 1910.09338); Frank-Wolfe for L2 and L1 (Chen et al. 2020, arXiv 1811.10828).
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core import scratch
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Caveat, Norm
from windtunnel.core.distances import distance, within
from windtunnel.core.scratch import finite_samples, put_samples
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.storage import KEPT

STEPS, RESTARTS = 40, 3
QUICK_STEPS, QUICK_RESTARTS = 10, 1  # before the bounds: finds most of what is easily broken in a tenth of the time
TARGETED_STEPS, TARGETED_RESTARTS = 50, 20
_NEAREST = 3  # other classes that are tried with all restarts
# A smaller lead of another class can turn with the size of the batch that the sample is in.
ROUNDING = 1e-5
_AT_ONCE = 512  # points
# Says which of the points (m, ...) break samples of the labels (m,), as (m,) bool.
Accept = Callable[[Classifier, Tensor, Tensor], Tensor]
# Of the steps under Linf: the last one as a part of the first, which is epsilon, and how much of a direction is kept for the next
# ("The attack of the cascade" in docs/benchmarks/verification.md).
_LAST_STEP, _MOMENTUM = 0.05, 0.75


def leads(classifier: Classifier, points: Tensor, targets: Tensor) -> Tensor:
    """Return True for each of `points` (n, ...) that the criterion counts as wrong, by more than rounding; (n,) bool."""
    return classifier.criterion.margin_loss(classifier.logits(points), targets) > ROUNDING


def confirmed(classifier: Classifier, points: Tensor, targets: Tensor) -> Tensor:
    """`leads`, and in float64 as well, where the model has gradients and so a copy of itself in that precision; (n,) bool."""
    leads_anywhere = leads(classifier, points, targets)
    if bool(leads_anywhere.any()) and Capability.AUTOGRAD in classifier.capabilities:
        exact = copy.deepcopy(classifier.module).double()
        with torch.no_grad():
            logits = exact(points[leads_anywhere].double().to(classifier.device)).cpu()
        leads_anywhere[leads_anywhere.clone()] = classifier.criterion.margin_loss(logits, targets[leads_anywhere]) > 0
    return leads_anywhere


def falsify(
    classifier: Classifier,
    inputs: Tensor,
    targets: Tensor,
    epsilon: float | Tensor,
    seed: int,
    norm: Norm = Norm.LINF,
    *,
    steps: int = STEPS,
    restarts: int = RESTARTS,
    deadline: float = float("inf"),
    accept: Accept = confirmed,
) -> tuple[Tensor, Tensor]:
    """Search misclassified points of the ball inside [0, 1], by the margin of the label: a saturated softmax hides nothing.

    Args:
        classifier: Model with gradients.
        inputs: float32 (n, ...), centres of the balls.
        targets: int64 (n,), the labels.
        epsilon: Radius, one for all or one a sample (n,).
        seed: Of the starting points.
        norm: Of the ball.
        steps: Gradient steps of each restart.
        restarts: Searches, each from points of its own.
        deadline: time.monotonic() at which the search ends, with what it has.
        accept: Returns (m,) bool, which of some points break the samples with the given labels.

    Returns:
        is_broken (n,) bool, and examples (n, ...): the point found, or the input itself.
    """
    is_broken, examples, generator, region = _unbroken(inputs, epsilon, seed, norm)
    for _ in range(restarts):
        remaining = (~is_broken).nonzero().flatten()
        if not len(remaining) or time.monotonic() > deadline:
            break
        start = _random_points(region, remaining, generator)
        points, _ = _descend(classifier, start, targets, region, remaining, None, steps, deadline)
        _keep(accept(classifier, points, targets[remaining]), points, remaining, is_broken, examples)
    return is_broken, examples


def _unbroken(
    inputs: Tensor, epsilon: float | Tensor, seed: int, norm: Norm
) -> tuple[Tensor, Tensor, torch.Generator, BallRegions]:
    """Return the state before a search: no sample is broken, examples are the inputs; with its generator and region."""
    region = BallRegions.around(inputs, norm, epsilon, torch.device("cpu"))
    is_broken = torch.zeros(len(inputs), dtype=torch.bool)
    return is_broken, inputs.clone(), torch.Generator().manual_seed(seed), region


def falsify_targeted(
    classifier: Classifier,
    inputs: Tensor,
    targets: Tensor,
    epsilon: float | Tensor,
    seed: int,
    norm: Norm = Norm.LINF,
    *,
    steps: int = TARGETED_STEPS,
    restarts: int = TARGETED_RESTARTS,
    deadline: float = float("inf"),
    accept: Accept = confirmed,
) -> tuple[Tensor, Tensor]:
    """Falsify as `falsify` does, aimed at each other class in turn; then `restarts` more searches for those that came nearest."""
    is_broken, examples, generator, region = _unbroken(inputs, epsilon, seed, norm)
    margins = torch.full((len(inputs), classifier.num_classes), torch.inf)

    def aim(sample: Tensor, other: Tensor) -> None:
        for part in torch.arange(len(sample)).split(_AT_ONCE):
            part = part[~is_broken[sample[part]]]
            if len(part) and time.monotonic() < deadline:
                indices = sample[part]
                start = _random_points(region, indices, generator)
                points, least = _descend(classifier, start, targets, region, indices, other[part], steps, deadline)
                _keep(accept(classifier, points, targets[indices]), points, indices, is_broken, examples)
                margins[indices, other[part]] = torch.minimum(margins[indices, other[part]], least)

    aim(*(torch.arange(classifier.num_classes) != targets[:, None]).nonzero().unbind(1))
    nearest = margins.argsort(1)[:, : min(_NEAREST, classifier.num_classes - 1)]
    samples = torch.arange(len(inputs))[:, None].expand_as(nearest)
    for _ in range(restarts):
        aim(samples.flatten(), nearest.flatten())
    return is_broken, examples


def _keep(hit: Tensor, points: Tensor, indices: Tensor, is_broken: Tensor, examples: Tensor) -> None:
    """Write those of `points` (m, ...) that `hit` (m,) says break their samples `indices` into `is_broken` and `examples`."""
    examples[indices[hit]] = points[hit]
    is_broken[indices[hit]] = True


def _random_points(region: BallRegions, indices: Tensor, generator: torch.Generator) -> Tensor:
    """(m, d) points of the regions `indices`: uniform in the box, moved into the ball."""
    low, high = region.low[indices], region.high[indices]
    return region.points(low + (high - low) * torch.rand(low.shape, generator=generator), indices)


def _descend(
    classifier: Classifier,
    start: Tensor,
    targets: Tensor,
    region: BallRegions,
    indices: Tensor,
    others: Tensor | None,
    steps: int,
    deadline: float,
) -> tuple[Tensor, Tensor]:
    """(points (m, *input_shape), margins (m,)): the least that `steps` steps from `start` (m, d) meet.

    others: (m,) the class that each search aims at; None for whichever is nearest. For Linf signed steps with momentum, whose
    size falls from epsilon on; for L2 and L1 Frank-Wolfe, whose steps end at extreme points of the ball inside the image domain.
    """
    device, shape = classifier.device, (-1, *classifier.input_shape)
    y = targets[indices].to(device)[:, None]
    other = None if others is None else others.to(device)[:, None]
    low, high, radius = (t[indices].to(device).float() for t in (region.low, region.high, region.radius))
    x = start.float().to(device)
    best, least, direction = x.clone(), torch.full((len(x),), torch.inf, device=device), torch.zeros_like(x)
    for i in range(steps + 1):
        if time.monotonic() > deadline:
            break
        x = x.detach().requires_grad_()
        logits = classifier.module(x.view(shape))
        if other is None:
            margin = classifier.criterion.margin(logits, y.squeeze(1))
        else:
            margin = (logits.gather(1, y) - logits.gather(1, other)).squeeze(1)
        now = margin.detach().to(least)
        better = now < least
        best[better], least[better] = x.detach()[better], now[better]
        gradient = torch.zeros_like(x)  # of a network of comparisons, which has none
        if margin.requires_grad:
            (gradient,) = torch.autograd.grad(margin.sum(), x)
        if region.norm is Norm.LINF:
            mean = gradient.abs().mean(1, keepdim=True)
            direction = _MOMENTUM * direction + gradient / mean.where(mean > 0, 1)
            size = radius[:, None] * _LAST_STEP ** (i / steps)
            x = torch.min(torch.max(x.detach() - size * direction.sign(), low), high)
        else:
            _, corner = region.minimum(gradient.cpu(), indices)
            x = x.detach() + 2 / (i + 2) * (corner.to(x) - x.detach())
    return region.points(best.cpu(), indices).float().view(shape), least.cpu()


def without_images(results: Mapping[str, Artifacts]) -> Iterator[Caveat]:
    """Return caveats on attacks whose examples could not all be used."""
    for name, result in results.items():
        if KEPT in result.data:
            yield Caveat(
                "examples_not_kept",
                f"attacks.{name} kept the images of {len(result.kept)} of {len(result.sample_names)} samples "
                f"(storage.inputs): its other examples falsify nothing here.",
            )


def known_examples(
    subject: Subject, norm: Norm, epsilon: float, results: Mapping[str, Artifacts]
) -> tuple[Tensor, Tensor]:
    """(found (N,) bool, examples (N, ...)): points of `results` within the budget at which another class clearly leads.

    Distances are measured and the model is queried again, so only examples whose images were kept count; rows without an
    example hold the clean input.
    """
    data = subject.dataset
    is_broken, examples = torch.zeros(len(data), dtype=torch.bool), scratch.copy_of(data.inputs)
    for result in results.values():
        result = result.pictured
        mine, theirs = result.common_samples(data.ids)
        if not len(mine):
            continue
        points = scratch.samples_at(result.tensor("perturbed_inputs"), theirs)
        good = within(distance(norm, points, scratch.samples_at(data.inputs, mine)), epsilon) & ~is_broken[mine]
        good &= finite_samples(points) & leads(subject.classifier, points, data.targets[mine])
        put_samples(examples, mine[good], points, good.nonzero().flatten())
        is_broken[mine[good]] = True
    return is_broken, examples
