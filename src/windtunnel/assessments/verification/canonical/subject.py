"""The subject as verifiers see it: the same decisions, by a network of one form and one scale."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.canonical.fold import end_in_linear, fold, rescale
from windtunnel.assessments.verification.canonical.operators import with_weights
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Caveat
from windtunnel.core.references import first_line
from windtunnel.core.statistics import median
from windtunnel.core.subject import Subject

if TYPE_CHECKING:
    from windtunnel.assessments.verification.canonical.trace import Trace

MEASURED = 64  # samples that tell the scale of the values
# Two roads to the same logits differ by rounding; by more of their spread than this, one of them is wrong.
_AGREEMENT = 1e-3
_LEAST_PROBABILITY = 1e-37  # below, float32 is not exact


@dataclass(frozen=True, slots=True)
class Canonical:
    """`subject` with a network of our own, whose logits are (logits - offset) / unit of the user's.

    unit: the median over the samples of the largest less the smallest logit, so that all tolerances are relative.
    slack: how far the two differ on the samples, in units: rounding, which every bound is widened by.
    """

    subject: Subject
    unit: float
    offset: float
    slack: float
    ending: str = ""

    def margins(self, bounds: Tensor) -> Tensor:
        """Differences of the network's logits as differences of the user's."""
        return (bounds.double() * self.unit).float()

    def outputs(self, lower: Tensor, upper: Tensor) -> dict[str, Tensor]:
        """Bounds (n, K) of the network's logits as bounds of what the user's model gives, `lower` and `upper`."""
        low, high = (bounds.double() * self.unit + self.offset for bounds in (lower, upper))
        if self.ending:
            low, high = _log_probability(low, high), _log_probability(high, low)
            if self.ending == "softmax":
                low, high = low.exp(), high.exp()
        return {"lower": low.float(), "upper": high.float()}

    def distance(self, outputs: Tensor) -> float:
        """Return how far outputs (n, K) of the user's model are from the network's, in units; of probabilities their logarithms."""
        expected, outputs = self.subject.clean_logits.double() * self.unit + self.offset, outputs.double()
        if self.ending:
            expected = expected.log_softmax(1)
            outputs = outputs.clamp(min=_LEAST_PROBABILITY).log() if self.ending == "softmax" else outputs
            expected, outputs = (values.clamp(min=math.log(_LEAST_PROBABILITY)) for values in (expected, outputs))
        return float((expected - outputs).abs().max()) / self.unit if len(expected) else 0.0

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return the caveats of the canonical form."""
        if not self.ending:
            return ()
        text = f"The {self.ending} at the end of the model changes no decision: margins are of the logits before it."
        return (Caveat("logits_verified", text),)


class Rescaled(nn.Module):
    """(logits - offset) / unit of a module that cannot be rewritten."""

    def __init__(self, module: nn.Module, unit: float, offset: float) -> None:
        super().__init__()
        self.module, self.unit, self.offset = module, unit, offset

    def forward(self, x: Tensor) -> Tensor:
        """Float32 (n, K)."""
        logits: Tensor = self.module(x).double()
        return ((logits - self.offset) / self.unit).float()


def _log_probability(own_logit: Tensor, others: Tensor) -> Tensor:
    """Log softmax (n, K) where each class has its logit in `own` and all others have theirs in `others`."""
    table = others[:, None].repeat(1, others.shape[1], 1)
    table.diagonal(dim1=1, dim2=2).copy_(own_logit)
    log_probability: Tensor = own_logit - table.logsumexp(2)
    return log_probability


def canonical_subject(subject: Subject, *, traced: bool = True) -> Canonical:
    """Return the subject with its network traced, folded and brought to unit scale; nothing of it touches the user's module.

    traced: False to rescale the logits of a copy, which is quick, and enough for an attack or branch and bound.
    A model that cannot be traced is copied and its logits rescaled; one without gradients is only rescaled. Raises
    IncompatibleError for a model of which a trace is one branch, or of one size of batch.
    """
    classifier, inputs = subject.classifier, subject.dataset.inputs[:MEASURED]
    is_opaque = Capability.AUTOGRAD not in classifier.capabilities or not len(inputs)
    trace_or_reason = _traced(classifier) if traced and not is_opaque else ""
    if isinstance(trace_or_reason, str):
        unit, offset = unit_of(subject.clean_logits[:MEASURED].double())
        if is_opaque:
            return _rescaled(subject, Rescaled(classifier.module, unit, offset), unit, offset)
        k = classifier.num_classes
        last = with_weights(nn.Linear(k, k), torch.eye(k) / unit, torch.full((k,), -offset / unit))
        copied = nn.Sequential(_copied(classifier.module), last.requires_grad_(False))
        return _rescaled(subject, copied.to(classifier.device), unit, offset)
    network = copy.deepcopy(trace_or_reason.graph)
    with torch.no_grad():
        logits = network(inputs.double().cpu())
        unit, offset = unit_of(logits)
        rescale(network, inputs.double().cpu(), unit, offset)
    network_on_device = network.float().to(classifier.device)
    if not trace_or_reason.ending:
        return _rescaled(subject, network_on_device, unit, offset)
    return replace(_rescaled(subject, network_on_device, unit, offset, logits), ending=trace_or_reason.ending)


def unit_of(logits: Tensor) -> tuple[float, float]:
    """Return (unit, offset) of logits (n, K): the median spread over the classes, and the mean; 1 where there is no spread."""
    if not len(logits):
        return 1.0, 0.0
    unit, offset = (
        float(f"{float(size):.4g}")
        for size in (median((logits.amax(1) - logits.amin(1)).tolist()) or 0.0, logits.mean())
    )
    return (unit, offset) if 0 < unit < math.inf else (1.0, 0.0)


@lru_cache(maxsize=4)
def _traced(classifier: Classifier) -> Trace | str:
    """Return the network traced and folded, ending in a linear layer; a text where it cannot be, or does not give the logits."""
    # This imports the exporter of torch, which is large.
    from windtunnel.assessments.verification.canonical.trace import UntraceableError, trace

    sample = torch.rand(8, *classifier.input_shape, generator=torch.Generator().manual_seed(0))
    try:
        traced = trace(classifier.module, sample[:1], classifier.source)
        with torch.no_grad():
            fold(traced.graph)
            end_in_linear(traced.graph, classifier.num_classes)
            expected, actual = classifier.logits(sample).double(), traced.graph(sample.double())
    except UntraceableError as error:
        return str(error)
    except RuntimeError as error:  # a cast inside the module, whose weights are float64 here
        return f"its graph cannot be computed in float64 ({first_line(error)})"
    ending = {"": lambda x: x, "softmax": lambda x: x.softmax(1), "log_softmax": lambda x: x.log_softmax(1)}
    actual = ending[traced.ending](actual)
    if not ((actual - expected).abs() <= _AGREEMENT * expected.abs().max()).all():
        return "its graph gives other logits"
    return traced


def _rescaled(
    subject: Subject, network: nn.Module, unit: float, offset: float, logits: Tensor | None = None
) -> Canonical:
    """logits: of the first samples, where the user's model ends in something else and gives none."""
    classifier = replace(subject.classifier, module=network.eval())
    own_logits = classifier.logits(subject.dataset.inputs)
    theirs = subject.clean_logits[:MEASURED].double() if logits is None else logits
    apart = (own_logits[: len(theirs)].double() - (theirs - offset) / unit).abs()
    slack = slack_of(float(apart.max()) if len(apart) else 0.0)
    return Canonical(replace(subject, classifier=classifier, clean_logits=own_logits), unit, offset, slack)


def slack_of(largest: float) -> float:
    """Return a difference up to a power of two: what a machine's rounding measures is not what another's does."""
    return 2.0 ** math.ceil(math.log2(largest)) if 0 < largest < math.inf else largest


def _copied(module: nn.Module) -> nn.Module:
    """Return a deep copy without dropout, for which auto-LiRPA would turn on training mode."""
    copied = copy.deepcopy(module)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.dropout._DropoutNd):
                setattr(parent, name, nn.Identity())
    return copied.eval().requires_grad_(False)
