"""Every liar of the gallery as a case: models, data, attacks, verifiers and budgets that give a number that is not true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.gallery import masks
from benchmarks.gallery.case import EPSILON, Case, changed, subject_with
from benchmarks.gallery.faulty import faulty
from benchmarks.gallery.honest import CPU, Averaged, Pair, digits, fitted, trained
from windtunnel.assessments.attacks import assess as attacks
from windtunnel.assessments.attacks.adapters import Request
from windtunnel.boundary.models.training import train_classifier
from windtunnel.core.contracts import Verdict
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import subject_of
from windtunnel.params.model import Recipe

SIMPLE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "wrong-sign gradient": masks.wrong_sign,
    "graph cut at the input": masks.no_gradient,
    "gradient clipped to zero": masks.clipped_gradient,
    "bit-depth reduction": masks.bit_depth,
    "thermometer encoding": masks.thermometer,
    "JPEG without BPDA": masks.jpeg,
    "float16 at temperature 1/1000": masks.saturated,
    "probabilities for logits": masks.probabilities,
    "clamped logits": masks.clamped,
    "argmax inside": masks.argmax_inside,
    "defensive distillation": masks.distilled,
    "noise at inference": masks.random_noise,
    "random resizing": masks.random_resizing,
    "noise seeded by a hash": masks.hash_noise,
    "shattered gradients": masks.shattered,
    "detector of off-grid inputs": masks.OffGrid,
    "batch statistics": masks.BatchStatistics,
    "purifier that optimises": masks.Purifying,
    "aware of who asks for a gradient": masks.AwareOfGradients,
    "gradient that turns at the boundary": masks.TurnsAtTheBoundary,
    "another answer from the ninth call on": masks.CountsCalls,
}


def liars(n: int = 60) -> Iterator[Case]:
    """All of them, on digits."""
    data = digits(n)
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    yield from (Case(name, subject_with(make(cnn), data[0]), data[1], stand_in=cnn) for name, make in SIMPLE.items())
    yield from composed(data, cnn, mlp)
    yield from _about_the_data(data, cnn)
    yield from _tools(data, cnn, mlp)
    yield from faulty(n)


def composed(data: Pair, cnn: nn.Module, mlp: nn.Module) -> Iterator[Case]:
    """Yield models of several parts, with what an attack by hand takes gradients from where it is not the model itself."""
    assessed, train = data
    shape, k = tuple(assessed.inputs.shape[1:]), assessed.num_classes
    roughness = masks.Refusing.roughness(assessed.inputs)

    def case(name: str, module: nn.Module, stand_in: nn.Module | None = None) -> Case:
        return Case(name, subject_with(module, assessed), train, stand_in=stand_in)

    yield case("detached branch", masks.DetachedBranch(cnn, shape, k), cnn)
    yield case("hard labels behind a blind gradient", masks.BehindHardLabels(cnn, shape, k), cnn)
    members = (cnn, mlp, trained(data, epochs=4))
    yield case("switch by a checksum", masks.Switching(*members), Averaged(*members))
    yield case("detector that refuses", masks.Refusing(cnn, float(roughness.quantile(0.9))), cnn)
    yield case("cache of queries", masks.Cache(cnn, 1.5 * EPSILON), cnn)
    weak = train_classifier(Recipe(architecture="mlp", epochs=1), train.subset(torch.arange(100)), 0, CPU)
    yield case("memorised images", masks.Memory(weak, assessed.inputs, assessed.targets, k, 2 * EPSILON), weak)
    layers = [nn.Flatten(), nn.Linear(64, 256), masks.WinnersTakeAll(), nn.Linear(256, 256), masks.WinnersTakeAll()]
    yield case("k-winners-take-all", fitted(nn.Sequential(*layers, nn.Linear(256, k)), data))
    for name, share in (("dropout that stays on", 0.4), ("a layer that stays in training mode", 0.0)):
        layers = [nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), masks.StuckDropout(share), nn.Linear(96, k)]
        yield case(name, fitted(nn.Sequential(*layers), data))


def _about_the_data(data: Pair, cnn: nn.Module) -> Iterator[Case]:
    assessed, train = data

    def case(name: str, dataset: Dataset, known: Dataset | None = train) -> Case:
        return Case(name, subject_of(subject_with(cnn, assessed).classifier, dataset), known)

    ten = assessed.subset(torch.arange(len(assessed)) % 10)
    yield case("ten images, each six times", replace(ten, ids=assessed.ids))
    doubled = replace(assessed.subset(torch.arange(len(assessed)) // 2), ids=assessed.ids)
    labels = doubled.targets.clone()
    labels[1::6] = (labels[1::6] + 1) % 10
    yield case("one image, two labels", replace(doubled, targets=labels))
    flipped = assessed.targets.clone()
    flipped[::5] = (flipped[::5] + 3) % 10
    yield case("a fifth of the labels wrong", replace(assessed, targets=flipped))
    yield case("assessed on training samples", replace(train.subset(torch.arange(len(assessed))), ids=assessed.ids))
    pool, _ = digits(500)
    margins = SOFTMAX.margin_loss(subject_with(cnn, pool).clean_logits, pool.targets)
    yield case("the easiest samples of many", pool.subset(margins.argsort()[: len(assessed)].sort().values))
    yield case("normalised outside the model", replace(assessed, inputs=(assessed.inputs - 0.3) / 0.35))
    pseudo = replace(assessed, targets=torch.full_like(assessed.targets, -1), labelled=False)
    yield case("no labels", pseudo)


@contextmanager
def returning(make: Callable[[Request, nn.Module], Tensor]) -> Iterator[None]:
    """Every library's attack replaced by `make`, for PGD alone: FGSM is left as it is."""
    real = attacks.adapter_of

    def adapter(library: str) -> Callable[[Request, nn.Module], Tensor]:
        honest = real(library)
        return lambda request, model: (make if request.row.algorithm.name == "PGD" else honest)(request, model)

    attacks.adapter_of = adapter  # type: ignore[attr-defined]
    try:
        yield
    finally:
        attacks.adapter_of = real  # type: ignore[attr-defined]


def signed_steps(
    request: Request, model: nn.Module, *, sign: float = 1.0, shift: int = 0, steps: int = 20, size: float = 1 / 8
) -> Tensor:
    """PGD on cross entropy with the faults given: a sign, labels moved on, too few or too small steps."""
    epsilon = request.budget.epsilon or 0.0
    x, labels = request.inputs.clone(), (request.labels + shift) % request.num_classes
    for _ in range(steps):
        point = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(point), labels), point)
        x = (point.detach() + sign * size * epsilon * gradient.sign()).clamp(
            request.inputs - epsilon, request.inputs + epsilon
        )
        x = x.clamp(0, 1)
    return x


def _mixed_up(request: Request, model: nn.Module) -> Tensor:
    return request.inputs + (signed_steps(request, model) - request.inputs).roll(1, 0)


def _noise_at_the_end(request: Request, model: nn.Module) -> Tensor:
    epsilon = request.budget.epsilon or 0.0
    moved = signed_steps(request, model) + epsilon * (2 * torch.rand_like(request.inputs) - 1)
    return moved.clamp(request.inputs - epsilon, request.inputs + epsilon).clamp(0, 1)


def _noise(request: Request, model: nn.Module) -> Tensor:
    model(request.inputs)
    epsilon = request.budget.epsilon or 0.0
    return (request.inputs + epsilon * torch.randn_like(request.inputs).sign()).clamp(0, 1)


BROKEN_PGD: dict[str, Callable[[Request, nn.Module], Tensor]] = {
    "attack returns its input": lambda request, _: request.inputs,
    "attack descends the loss": lambda request, model: signed_steps(request, model, sign=-1.0),
    "attack on other labels": lambda request, model: signed_steps(request, model, shift=1, sign=-1.0),
    "attack with steps too small": lambda request, model: signed_steps(request, model, size=0.01),
    "attack that draws and forgets": _noise,
    "attack that mixes up its batch": _mixed_up,
    "attack that ends with noise": _noise_at_the_end,
}
PGD_ALONE = {"pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": EPSILON / 8}}}


def _outside_the_box(data: dict[str, Tensor]) -> None:
    data["perturbed_inputs"] = data["perturbed_inputs"] + 0.5 * (data["perturbed_inputs"] - data["clean_inputs"]).sign()


def _not_saved(data: dict[str, Tensor]) -> None:
    data["perturbed_inputs"] = data["clean_inputs"].clone()


def _certifies_all(data: dict[str, Tensor]) -> None:
    data["verdicts"] = torch.full_like(data["verdicts"], int(Verdict.VERIFIED))


def _bounds_of_the_centre(data: dict[str, Tensor]) -> None:
    bounds = data["output_bounds"]
    middle = (bounds["lower"] + bounds["upper"]) / 2
    data["output_bounds"] = {"lower": middle - 1e-3, "upper": middle + 1e-3}  # type: ignore[assignment]


def _tools(data: Pair, cnn: nn.Module, mlp: nn.Module) -> Iterator[Case]:
    assessed, train = data
    subject = subject_with(cnn, assessed)
    on_another = {"attack on another model": lambda request, _: signed_steps(request, mlp)}
    for name, make in {**BROKEN_PGD, **on_another}.items():
        yield Case(name, subject, train, {"attacks": PGD_ALONE}, around=lambda make=make: returning(make))
    yield Case("examples outside the box", subject, train, spoil=changed("pgd", _outside_the_box))
    yield Case("success that was not saved", subject, train, spoil=changed("pgd", _not_saved))
    for name, epsilon in (("epsilon in 0..255", 8.0), ("epsilon divided by 255 twice", 8 / 255 / 255)):
        steps = {
            "pgd": {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": epsilon / 8}}
        }
        eight = replace(assessed, inputs=(assessed.inputs * 255).round() / 255)
        run = {"budget": {"norm": "Linf", "epsilon": epsilon}, "attacks": steps}
        yield Case(name, subject_of(subject.classifier, eight), train, run)
    proof = {"verification": {"crown": {"library": "auto-LiRPA", "algorithm": "crown"}}}
    small = subject_with(mlp, assessed)
    yield Case("verifier that certifies all", small, train, proof, spoil=changed("crown", _certifies_all))
    yield Case("verifier with bounds too tight", small, train, proof, spoil=changed("crown", _bounds_of_the_centre))
