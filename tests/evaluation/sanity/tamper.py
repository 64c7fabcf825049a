"""Ways to spoil a run: each is what a broken model, attack, verifier or report leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import AssessmentKind, Verdict
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.params.results import Sanity
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import parse_metadata


def piece_of(evidence: Evidence, name: str) -> Assessment:
    return next(p for p in evidence.assessments if p.name == name)


def changed(
    evidence: Evidence,
    name: str,
    tensors: Callable[[dict], None] | None = None,
    metadata: Callable[[dict], None] | None = None,
) -> Evidence:
    """The run with one assessment's tensors or metadata changed in place by the functions given."""
    assessments = []
    for assessment in evidence.assessments:
        if assessment.name == name:
            data = {
                k: v.clone() if isinstance(v, Tensor) else {n: t.clone() for n, t in v.items()}
                for k, v in assessment.artifacts.data.items()
            }
            facts = copy.deepcopy(assessment.artifacts.metadata.model_dump(mode="json"))
            if tensors:
                tensors(data)
            if metadata:
                metadata(facts)
            assessment = replace(
                assessment, artifacts=Artifacts(name, assessment.artifacts.directory, data, parse_metadata(facts, name))
            )
        assessments.append(assessment)
    return replace(evidence, assessments=tuple(assessments), notes={})


def with_model(evidence: Evidence, module: nn.Module, *, ask: bool = True) -> Evidence:
    """The run with another model under the same samples; its clean predictions recomputed where `ask`."""
    old = evidence.subject.classifier
    classifier = Classifier(
        module, old.num_classes, old.input_shape, old.capabilities, "another", "liar", onnx_path=old.onnx_path
    )
    subject = (
        subject_of(classifier, evidence.subject.dataset) if ask else replace(evidence.subject, classifier=classifier)
    )
    return replace(evidence, subject=subject, notes={})


def with_params(evidence: Evidence, **sanity: object) -> Evidence:
    settings = evidence.params.sanity.model_copy(update=sanity)
    return replace(evidence, params=evidence.params.model_copy(update={"sanity": settings}), notes={})


def verdicts(evidence: Evidence, names: list[str], verdict: Verdict) -> Evidence:
    """Every sample of these assessments gets one verdict; examples are left as they are."""
    for name in names:
        evidence = changed(evidence, name, lambda d: d["verdicts"].fill_(int(verdict)))
    return evidence


def failing(evidence: Evidence, *names: str) -> Evidence:
    return verdicts(evidence, list(names), Verdict.ATTACK_FAILED)


def winning(evidence: Evidence, *names: str) -> Evidence:
    return verdicts(evidence, list(names), Verdict.ATTACK_SUCCEEDED)


def fake(
    evidence: Evidence, name: str, family: str, data: Mapping[str, Tensor], metadata: Mapping[str, object]
) -> Evidence:
    """The run with one more assessment, made of FGSM's tensors and metadata with these changes."""
    model = piece_of(evidence, "fgsm")
    facts = {**copy.deepcopy(model.artifacts.metadata.model_dump(mode="json")), "name": name, **metadata}
    artifacts = Artifacts(name, Path(name), {**model.artifacts.data, **data}, parse_metadata(facts, name))
    assessment = Assessment(name, family, artifacts, model.indices)
    return replace(
        evidence,
        assessments=(*evidence.assessments, assessment),
        families={**evidence.families, name: family},
        notes={},
    )


def normalised_inputs(subject: Subject) -> Subject:
    """The user normalised the images and left that out of the model: values below 0 and above 1."""
    dataset = replace(subject.dataset, inputs=(subject.dataset.inputs - 0.3) / 0.35)
    return subject_of(subject.classifier, dataset)


class Wrapped(nn.Module):
    """A model inside a function of its input and its logits."""

    def __init__(self, inner: nn.Module, before: Callable = lambda x: x, after: Callable = lambda z: z) -> None:
        super().__init__()
        self.inner, self.before, self.after = inner, before, after
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


def quantised(inner: nn.Module) -> nn.Module:
    """Sees inputs in 17 levels: gradients are zero everywhere, and small noise does nothing."""
    return Wrapped(inner, before=lambda x: (x * 16).round() / 16)


def saturated(inner: nn.Module) -> nn.Module:
    """Logits x 1000: the softmax is 0 or 1, and cross entropy has no gradient."""
    return Wrapped(inner, after=lambda z: 1000 * z)


def noisy(inner: nn.Module, sigma: float = 0.3) -> nn.Module:
    """Adds noise to its input at inference."""
    return Wrapped(inner, before=lambda x: x + sigma * torch.randn_like(x))


def shaken(inner: nn.Module) -> nn.Module:
    """Little noise on the way forward, much on the way back: one gradient says nothing, the mean of many does."""

    def shake(x: Tensor) -> Tensor:
        return x + 0.02 * torch.randn_like(x) + 3 * torch.randn_like(x) * (x - x.detach())

    return Wrapped(inner, before=shake)


def batchwise(inner: nn.Module) -> nn.Module:
    """Normalises by the batch it is given."""
    return Wrapped(inner, before=lambda x: x - x.mean(0, keepdim=True) + 0.3 * (x.std() if len(x) > 1 else 1))


def probabilities(inner: nn.Module) -> nn.Module:
    return Wrapped(inner, after=lambda z: z.softmax(1))


def optimising(inner: nn.Module) -> nn.Module:
    """Takes a gradient step on its input before it answers."""

    def purify(x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(inner(point).logsumexp(1).sum(), point)
        return x - 0.001 * gradient

    return Wrapped(inner, before=purify)


def interrupted(inner: nn.Module) -> nn.Module:
    return Wrapped(inner, before=lambda x: x.detach())


def not_differentiable(inner: nn.Module) -> nn.Module:
    """Adds 0 in a way whose derivative is not finite."""
    return Wrapped(inner, before=lambda x: x + (x * 0).sqrt())


def rough(inner: nn.Module) -> nn.Module:
    return Wrapped(inner, before=lambda x: x + 0.5 * (5000 * x).sin())


KIND_SAMPLING = AssessmentKind.STATISTICAL_SAMPLING.value
STRICT = Sanity(profile="full")
