"""Passes and attacks that checks make themselves: small, of known behaviour, and independent of the libraries under check."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier, forward_samples
from windtunnel.core.contracts import Capability, Norm
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable
from windtunnel.evaluation.summary.evidence import PerturbationBall
from windtunnel.params.attacks import AttackEntry
from windtunnel.records.result import Tensors, tensor_in

NOISE = 64  # images of noise

Loss = Callable[[Tensor, Tensor], Tensor]


def need_gradients(evidence: Evidence) -> None:
    """Raise NotApplicable for a model without autograd."""
    if Capability.AUTOGRAD not in evidence.subject.classifier.capabilities:
        raise NotApplicable("the model offers no gradients; only its forward pass is attacked")


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


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a rerun to an attack's entry and to the run's seed; None leaves it as it is."""

    steps: int | None = None
    step_size: float | None = None
    restarts: int | None = None
    batch_size: int | None = None
    seed: int | None = None

    def of(self, entry: AttackEntry) -> AttackEntry:
        """Return the entry with the changes, on all samples and without figures."""
        own_settings = {"restarts": self.restarts, "batch_size": self.batch_size}
        budget = entry.budget.model_copy(update=_given({"steps": self.steps, "step_size": self.step_size}))
        return entry.model_copy(update={**_given(own_settings), "on": None, "visualisers": None, "budget": budget})


AS_IT_IS = Changes()


def _given(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in values.items() if value is not None}


def rerun(evidence: Evidence, assessment: Assessment, changes: Changes) -> tuple[Tensor, Tensor]:
    """Return the attack of `assessment` rerun on at most `sanity.samples` of the samples it tried: (local indices, succeeded)."""
    local = assessment.tried.nonzero().flatten()[: evidence.params.sanity.samples]
    data = rerun_attack(evidence, assessment, assessment.indices[local], changes)
    return local, tensor_in(data, "verdicts") == 1


def rerun_attack(evidence: Evidence, assessment: Assessment, indices: Tensor, changes: Changes = AS_IT_IS) -> Tensors:
    """Return the tensors of the attack of `assessment` with `changes`, on the samples at `indices`."""
    from windtunnel.assessments.attacks.assess import assess

    changed = changes.of(evidence.params.attacks[assessment.name])
    seed = evidence.subject.seed if changes.seed is None else changes.seed
    subject = replace(evidence.subject.subset(indices), seed=seed)
    name = f"sanity.{assessment.name}.{derive_seed(seed, str(changed))}"
    return assess(name, changed, evidence.params.budget, subject).data


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


def linf_ball(evidence: Evidence) -> tuple[PerturbationBall, Tensor]:
    """Return the largest Linf budget that attacks were run at, and the samples right that none of them broke; (N,) bool."""
    balls = [r for r in evidence.regions if r.norm is Norm.LINF]
    if not balls:
        raise NotApplicable("no attack was run in Linf")
    region = max(balls, key=lambda r: r.epsilon)
    mine = [p for p in evidence.attacks() if p.region == region]
    return region, evidence.covered(mine) & ~evidence.union(mine, lambda p: p.succeeded)


def need_several_answers(evidence: Evidence) -> None:
    """Raise NotApplicable for a model that calls every sample and noise one class, where the samples are of several.

    It learned nothing, or died in training: its accuracy is that of a guess, it hides nothing, and there is nothing to break.
    """

    def only_one() -> bool:
        data, predictions = evidence.subject.dataset, evidence.subject.clean_predictions
        if len(predictions.unique()) > 1 or len(data.targets.unique()) < 2:
            return False
        generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "one answer"))
        low, high = data.value_range
        noise = low + (high - low) * torch.rand((NOISE, *data.inputs.shape[1:]), generator=generator)
        return bool((evidence.subject.classifier.predict(noise, predictions[:1].expand(NOISE)) == predictions[0]).all())

    if evidence.once("one answer", only_one):
        raise NotApplicable("the model predicts one class for every input: nothing to break, and no masking")


def onnx_logits(evidence: Evidence, inputs: Tensor) -> Tensor:
    """Logits (n, K) by onnxruntime of the model's ONNX graph, which is exported once where the model is no file of it."""
    from windtunnel.boundary.models.backends import OnnxModule
    from windtunnel.boundary.models.load import export_onnx

    classifier = evidence.subject.classifier

    def read() -> OnnxModule:
        with tempfile.TemporaryDirectory() as folder:
            return OnnxModule(classifier.onnx_path or export_onnx(classifier, Path(folder) / "model.onnx"))

    graph = evidence.once("onnx graph", read)
    with torch.no_grad():
        return torch.cat([graph(part) for part in inputs.split(forward_samples(inputs))])
