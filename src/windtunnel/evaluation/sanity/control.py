"""The positive control: models whose answer is known, made here, attacked by the probe and by the library."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.scratch import by_samples
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity import CONTROL_LIBRARY
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.records.metadata import number

CLASSES = 10  # at most
LESSONS = 8  # samples of each class that a control learns from
STEPS = 30
WIDTH = 16
LARGEST_LOGIT = 5.0
VALUES = 2_000_000  # of all samples attacked together, but for FEWEST samples: what the control costs with large images
FEWEST = 12
# In shares of the range of the samples.
CONTRAST = 0.15  # distance of each pixel of a prototype from mid-grey
NOISE = 0.1  # largest distance of a pixel of a sample from its prototype
# Within it of every sample lies the prototype of each other class: no classifier that knows the prototypes withstands it.
EPSILON = 2 * CONTRAST + NOISE


def controls_attacked(data: Dataset, n: int) -> int:
    """Return the number of samples of each control to attack if `n` are requested: fewer of large images."""
    return min(n, max(FEWEST, VALUES // data.inputs[0].numel()))


def attack_controls(data: Dataset, n: int) -> tuple[float, float, float]:
    """(robust accuracy of an undefended network where all can be broken, exact and measured robust accuracy of a linear one).

    Both work on `n` samples of the shape and the range of those of `data`, and of as many classes up to ten.
    """
    # A network this small is slower on more threads, and many times so on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _attack_controls(data, n)
    finally:
        torch.set_num_threads(threads)


def _attack_controls(data: Dataset, n: int) -> tuple[float, float, float]:
    low, high = _range(data)
    classes = min(max(data.num_classes, 2), CLASSES)
    values = data.inputs[0].numel()
    network = nn.Sequential(nn.Linear(values, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
    undefended = _attacked(_subject(network, data, classes, n), EPSILON * (high - low))
    # Of two classes: the worst change is the same for every sample, which an attack that works finds to the last.
    linear = _subject(nn.Sequential(nn.Linear(values, 2)), data, 2, n)
    epsilon = _telling_epsilon(linear)
    exact = linear_margins(linear, epsilon) > 0
    return undefended, float(exact.double().mean()), _attacked(linear, epsilon)


def control_data(data: Dataset, classes: int, n: int, *, draw: str) -> Dataset:
    """`n` samples around one prototype per class, of the shape and the range of `data`; `draw` names the draw of the noise."""
    low, high = _range(data)
    shape = tuple(data.inputs.shape[1:])
    generator = torch.Generator().manual_seed(derive_seed(0, "A16", "prototypes"))
    signs = torch.rand((classes, *shape), generator=generator).ge(0.5).float() * 2 - 1
    generator = torch.Generator().manual_seed(derive_seed(0, "A16", draw))
    # Samples differ in how close they come to mid-grey, so that some are broken sooner than others.
    targets = torch.arange(n) % classes
    strength = torch.rand((n, *[1] * len(shape)), generator=generator) * 0.8 + 0.2
    noise = (2 * torch.rand((n, *shape), generator=generator) - 1) * NOISE
    inputs = (low + high) / 2 + (high - low) * (CONTRAST * strength * signs[targets] + noise)
    names = tuple(map(str, range(classes)))
    return Dataset(inputs, targets, tuple(map(str, range(n))), names, value_range=data.value_range)


def _range(data: Dataset) -> tuple[float, float]:
    """Return the range of the samples inside the range of their kind; all of that where they span less than a grey level."""
    low, high = data.value_range

    def end(fill: float, reduce: Callable[..., Tensor]) -> float:
        ends = by_samples(lambda x: reduce(x.where(x.isfinite(), fill).flatten(1), 1), data.inputs)
        return float(reduce(ends).clamp(low, high))

    least, most = end(torch.inf, torch.amin), end(-torch.inf, torch.amax)
    return (low, high) if most - least < (high - low) / 255 else (least, most)


class Centred(nn.Module):
    """Inputs less a constant, in units of another: a network learns nothing from values that hardly differ."""

    def __init__(self, centre: float, scale: float) -> None:
        super().__init__()
        self.centre, self.scale = centre, scale

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) to (N, ...)."""
        return (x - self.centre) / self.scale


def _subject(layers: nn.Sequential, data: Dataset, classes: int, n: int) -> Subject:
    """`layers` behind centred, flattened inputs, trained on samples of its own, and `n` others to be attacked."""
    low, high = _range(data)
    lessons = control_data(data, classes, LESSONS * classes, draw="lessons")
    module = nn.Sequential(Centred((low + high) / 2, high - low), nn.Flatten(), *layers)
    with seeded(derive_seed(0, "A16", "weights")):
        for layer in layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(lessons.inputs), lessons.targets).backward()
        optimiser.step()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    # Many values make large logits, of which cross entropy has no gradient: the same classes with logits of moderate size.
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    shrink = LARGEST_LOGIT / float(module(lessons.inputs).abs().max())
    last.weight.mul_(shrink)
    last.bias.mul_(shrink)
    shape = tuple(data.inputs.shape[1:])
    digest = module_digest(module)
    classifier = Classifier(module.eval(), classes, shape, frozenset(Capability), digest, "positive control")
    return subject_of(classifier, control_data(data, classes, n, draw="assessed"))


def _parts(subject: Subject) -> tuple[Centred, nn.Linear]:
    centred, _, layer = subject.classifier.module.children()
    assert isinstance(centred, Centred)
    assert isinstance(layer, nn.Linear)
    return centred, layer


def linear_margins(subject: Subject, epsilon: float) -> Tensor:
    """Return the smallest margin of each sample in its Linf ball inside [0, 1] under a linear control of two classes; float64 (N,)."""
    centred, layer = _parts(subject)
    weights = (layer.weight[0] - layer.weight[1]).double() / centred.scale
    bias = float(layer.bias[0] - layer.bias[1]) - centred.centre * float(weights.sum())
    x, sign = subject.dataset.inputs.flatten(1).double(), 1 - 2 * subject.dataset.targets.double()
    # The worst change lowers every product: up where the weight, seen from the own class, is negative.
    own_weights = sign[:, None] * weights
    worst = torch.where(own_weights < 0, (x + epsilon).clamp(max=1), (x - epsilon).clamp(min=0))
    margins: Tensor = (worst * own_weights).sum(1) + sign * bias
    return margins


def _telling_epsilon(subject: Subject) -> float:
    """Return the middle of the widest gap between the distances at which the samples around the median break."""
    centred, layer = _parts(subject)
    slope = float((layer.weight[0] - layer.weight[1]).double().abs().sum()) / centred.scale
    distances = (linear_margins(subject, 0.0).clamp(min=0) / slope).sort().values
    n = len(distances)
    around = distances[n // 4 : max(3 * n // 4, n // 4 + 2)]
    if len(around) < 2:
        return float(distances.mean()) / 2
    widest = int(around.diff().argmax())
    return float(around[widest] + around[widest + 1]) / 2


def _attacked(subject: Subject, epsilon: float) -> float:
    from windtunnel.assessments.attacks.assess import assess

    effort = BudgetOverride(steps=40, step_size=epsilon / 10)
    entry = AttackEntry(library=CONTROL_LIBRARY, algorithm="PGD", budget=effort, restarts=2)
    attacked = assess("sanity.control", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject)
    return number(attacked.metrics, "adversarial_accuracy")
