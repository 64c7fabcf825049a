"""Passes and attacks that checks make themselves: small, of known behaviour, and independent of the libraries under check."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier, forward_samples
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.evaluation.sanity.check import NotApplicable, NotRun
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.records.regions import PerturbationBall
from windtunnel.records.result import Tensors, tensor_in

NOISE = 64  # images of noise

Loss = Callable[[Tensor, Tensor], Tensor]


def need_gradients(evidence: Evidence) -> None:
    """Raise NotApplicable for a model without autograd."""
    if Capability.AUTOGRAD not in evidence.classifier.capabilities:
        raise NotApplicable("the model offers no gradients; only its forward pass is attacked")


@contextmanager
def interrupted_graph() -> Iterator[None]:
    """Raise NotRun where autograd cannot follow the model inside: A13 says so."""
    try:
        yield
    except RuntimeError as error:
        raise NotRun(f"no gradient by the input (A13): {' '.join(str(error).split())[:120]}") from error


def known_gradients(evidence: Evidence, inputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return `input_gradients` of the model. Raises NotApplicable without autograd, NotRun where the graph is interrupted."""
    need_gradients(evidence)
    with interrupted_graph():
        return input_gradients(evidence.classifier, inputs, labels, loss)


def input_gradients(classifier: Classifier, inputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Gradient of `loss` at each input, float32 (n, ...) on the CPU. Raises RuntimeError where the graph is interrupted."""
    gradients, size = [], forward_samples(inputs)
    for x, y in zip(inputs.split(size), labels.split(size), strict=True):
        point = x.to(classifier.device).clone().requires_grad_()
        value = loss(classifier.module(point), y.to(classifier.device)).sum()
        (gradient,) = torch.autograd.grad(value, point)
        gradients.append(gradient.float().cpu())
    return torch.cat(gradients)


@dataclass(frozen=True, slots=True)
class Descent:
    """Result of `pgd` on n samples: broken (n,) bool; losses (steps + 1, n) and examples (n, ...) of the last restart."""

    broken: Tensor
    losses: Tensor
    examples: Tensor


class PgdEffort(TypedDict):
    """Steps, step size and seed of `pgd`."""

    steps: int
    step_size: float
    seed: int


def pgd(
    classifier: Classifier,
    inputs: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int,
    step_size: float,
    seed: int,
    restarts: int = 1,
    passes: int = 1,
    loss: Loss | None = None,
    until_broken: bool = False,
) -> Descent:
    """Projected gradient ascent on `loss` in Linf inside [0, 1], from random starts (Madry et al. 2018, arXiv 1706.06083).

    A sample counts as broken as soon as one iterate is misclassified. `passes` gradients are averaged at each step
    (expectation over transformation, Athalye et al. 2018), for models with randomness of their own. until_broken: end once
    every sample is.
    """
    device, generator = classifier.device, torch.Generator().manual_seed(seed)
    clean, y = inputs.to(device), labels.to(device)
    broken = torch.zeros(len(inputs), dtype=torch.bool)
    losses: list[Tensor] = []
    for _ in range(restarts):
        start = (2 * torch.rand(inputs.shape, generator=generator) - 1).to(device) * epsilon
        x, losses = (clean + start).clamp(0, 1), []
        for step in range(steps + 1):
            gradient = torch.zeros_like(x)
            for _ in range(passes):
                x = x.detach().requires_grad_()
                logits = classifier.module(x)
                value = (loss or classifier.criterion.margin_loss)(logits, y)
                (step_gradient,) = torch.autograd.grad(value.sum(), x)
                gradient += step_gradient
            losses.append(value.detach().cpu())
            broken |= ~classifier.criterion.is_correct(logits, y).cpu()
            if until_broken and broken.all():
                break
            if step < steps:
                x = (x.detach() + step_size * gradient.sign()).clamp(clean - epsilon, clean + epsilon).clamp(0, 1)
    return Descent(broken, torch.stack(losses), x.detach().cpu())


def rerun(evidence: Evidence, assessment: Assessment, **changes: float) -> tuple[Tensor, Tensor]:
    """Return the attack of `assessment` rerun on at most `sanity.samples` of the samples it tried: (local indices, succeeded)."""
    local = assessment.tried.nonzero().flatten()[: evidence.params.sanity.samples]
    data = rerun_attack(evidence, assessment, assessment.indices[local], **changes)
    return local, tensor_in(data, "verdicts") == 1


def rerun_attack(evidence: Evidence, assessment: Assessment, indices: Tensor, **changes: float) -> Tensors:
    """Return the tensors of the attack of `assessment` on the samples at `indices`, without figures.

    changes: `seed` of the run, and keys of the attack's entry or of its budget.
    """
    from windtunnel.assessments.attacks.assess import assess

    seed, entry = int(changes.pop("seed", evidence.subject.seed)), evidence.params.attacks[assessment.name]
    of_budget = {key: value for key, value in changes.items() if key in type(entry.budget).model_fields}
    of_entry = {key: value for key, value in changes.items() if key not in of_budget}
    changed = entry.model_copy(
        update={**of_entry, "on": None, "visualisers": None, "budget": entry.budget.model_copy(update=of_budget)}
    )
    subject = replace(evidence.subject.subset(indices), seed=seed)
    name = f"sanity.{assessment.name}.{derive_seed(seed, str(changed))}"
    drawn = assessment.artifacts.sample_names
    return assess(name, changed, evidence.params.budget, subject, rest=lambda: evidence.subject.without(drawn)).data


def uniform_in_ball(inputs: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """One uniform draw in each Linf ball, inside [0, 1]; (n, ...)."""
    return (inputs + (2 * torch.rand(inputs.shape, generator=generator) - 1) * epsilon).clamp(0, 1)


def several_passes(classifier: Classifier, inputs: Tensor, times: int) -> list[Tensor]:
    """Logits of the same inputs, `times` over, on the model's own random stream."""
    with seeded(derive_seed(0, "sanity.passes")):
        return [classifier.logits(inputs) for _ in range(times)]


def largest_linf(evidence: Evidence) -> float:
    """Return the largest Linf budget of the run; 8/255 where there is none."""
    return max((r.epsilon for r in evidence.regions if r.norm is Norm.LINF), default=8 / 255)


def linf_ball(evidence: Evidence) -> PerturbationBall:
    """Return the largest Linf budget that attacks were run at. Raises NotApplicable for none."""
    balls = [r for r in evidence.regions if r.norm is Norm.LINF]
    if not balls:
        raise NotApplicable("no attack was run in Linf")
    return max(balls, key=lambda r: r.epsilon)


def need_several_answers(evidence: Evidence) -> None:
    """Raise NotApplicable for a model that calls every sample and noise one class, where the samples are of several.

    It learned nothing, or died in training: its accuracy is that of a guess, it hides nothing, and there is nothing to break.
    """

    def only_one() -> bool:
        data, predictions = evidence.data, evidence.subject.clean_predictions
        if len(predictions.unique()) > 1 or len(data.targets.unique()) < 2:
            return False
        generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "one answer"))
        low, high = data.value_range
        noise = low + (high - low) * torch.rand((NOISE, *data.inputs.shape[1:]), generator=generator)
        return bool((evidence.classifier.predict(noise, predictions[:1].expand(NOISE)) == predictions[0]).all())

    if evidence.once("one answer", only_one):
        raise NotApplicable("the model predicts one class for every input: nothing to break, and no masking")


def onnx_logits(evidence: Evidence, inputs: Tensor) -> Tensor:
    """Logits (n, K) by onnxruntime of the model's ONNX graph, which is exported once where the model is no file of it."""
    from windtunnel.boundary.models.backends import OnnxModule
    from windtunnel.boundary.models.load import export_onnx

    classifier = evidence.classifier

    def read() -> OnnxModule:
        with tempfile.TemporaryDirectory() as folder:
            return OnnxModule(classifier.onnx_path or export_onnx(classifier, Path(folder) / "model.onnx"))

    graph = evidence.once("onnx graph", read)
    with torch.no_grad():
        return torch.cat([graph(part) for part in inputs.split(forward_samples(inputs))])
