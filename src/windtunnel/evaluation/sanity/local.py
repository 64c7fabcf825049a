"""Group A, the model as a function: one answer to one question, and nearly the same to nearly the same."""

import copy

import torch
from torch import Tensor

from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import median
from windtunnel.evaluation.sanity.check import CheckResult, our_check
from windtunnel.evaluation.sanity.evidence import Evidence, NotApplicable, NotRun
from windtunnel.evaluation.sanity.model import BATCH, is_random
from windtunnel.evaluation.sanity.probes import largest_linf, uniform_in_ball

HAIR = 1e-6  # far above what float32 resolves near 1 (6e-8), far below what any sensor does
MOVED = 0.01  # of the median margin


@our_check("A23")
def no_memory(evidence: Evidence, limit: float) -> CheckResult:
    """A model that remembers queries gives an attack the answer to another question.

    Two copies of the model are asked about the same mirrored images, and about points near them, one in this order and
    one in the other. Any prediction that differs flags, as do logits that differ by more than rounding.
    """
    if is_random(evidence):
        raise NotApplicable("the forward pass is random (A2)")
    data, module = evidence.subject.dataset, evidence.subject.classifier.module
    if isinstance(module, PredictFunction):
        raise NotApplicable("a Python function cannot be copied")
    try:
        copies = [copy.deepcopy(module) for _ in range(2)]
    except Exception as error:  # sessions and handles of other runtimes cannot be copied
        raise NotRun(f"the model cannot be copied ({type(error).__name__})") from error
    images = data.inputs[:BATCH].flip(-1)
    near = uniform_in_ball(images, largest_linf(evidence), torch.Generator().manual_seed(derive_seed(0, "A23")))
    device = evidence.subject.classifier.device
    with torch.no_grad():
        first = [copies[0](x.to(device)).float().cpu() for x in (images, near)]
        second = [copies[1](x.to(device)).float().cpu() for x in (near, images)][::-1]
    apart = torch.stack([(a - b).abs().amax(1) for a, b in zip(first, second, strict=True)]).amax(0)
    scale = float(torch.cat(first).abs().amax().clamp(min=1e-12))
    differ = apart > 1e-4 * scale
    reason = f"{int(differ.sum())} of {len(differ)} predictions depend on earlier queries"
    return CheckResult(bool(differ.any()), float(apart.max()) / scale, n=len(differ), reason=reason)


@our_check("A24")
def continuous(evidence: Evidence, limit: float) -> CheckResult:
    """A network is continuous; a hash of the input, a grid or a switch in the forward pass is not.

    The share of samples whose margin moves by more than 1 % of the median margin when every value changes by 1e-6, at
    the samples and at random points of the largest Linf ball around them.
    """
    if is_random(evidence):
        raise NotApplicable("the forward pass is random (A2)")
    data, classifier = evidence.subject.dataset, evidence.subject.classifier
    x, y = data.inputs[:BATCH], data.targets[:BATCH]
    generator = torch.Generator().manual_seed(derive_seed(0, "A24"))
    shares: list[Tensor] = []
    for points in (x, uniform_in_ball(x, largest_linf(evidence), generator)):
        signs = torch.randint(0, 2, points.shape, generator=generator) * 2 - 1
        margins, moved_margins = (
            classifier.criterion.margin(classifier.logits(p), y) for p in (points, points + HAIR * signs)
        )
        size = max(median(margins.abs().tolist()) or 0.0, 1e-12)
        shares.append((moved_margins - margins).abs() > MOVED * size)
    jumps = torch.stack(shares).any(0)
    value = float(jumps.double().mean())
    reason = f"the margins of {int(jumps.sum())} of {len(jumps)} samples jump when every value moves by {HAIR:g}"
    return CheckResult(value > limit, value, n=len(jumps), reason=reason)
