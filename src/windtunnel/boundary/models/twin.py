"""`model.twin`: a differentiable stand-in, on which gradient attacks search while every result is of the deployed file."""

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from windtunnel.boundary.models.loaders import Loaded
from windtunnel.boundary.models.record import TwinAgreement
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Caveat
from windtunnel.core.statistics import binomial_rate

TWIN = "twin"  # its folder beside the files of the deployed model


class WithTwin(nn.Module):
    """The logits of `deployed` bit for bit, with the gradient of `twin` (BPDA, Athalye et al. 2018)."""

    def __init__(self, deployed: nn.Module, twin: nn.Module) -> None:
        super().__init__()
        self.deployed, self.twin = deployed, twin

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K) of the deployed model."""
        with torch.no_grad():
            logits: Tensor = self.deployed(inputs)
        if not (torch.is_grad_enabled() and inputs.requires_grad):
            return logits
        straight: Tensor = _Straight.apply(self.twin(inputs), logits)  # type: ignore[no-untyped-call]
        return straight


class _Straight(torch.autograd.Function):
    """Return the second tensor; pass the gradient to the first."""

    is_twin = True

    @staticmethod
    def forward(ctx: Any, twin: Tensor, deployed: Tensor) -> Tensor:
        return deployed.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def agreement_of(deployed: Classifier, twin: Classifier, inputs: Tensor) -> TwinAgreement:
    """Count the samples (N, ...) on which the two predict the same class."""
    same = deployed.predict(inputs) == twin.predict(inputs)
    return TwinAgreement(agree=int(same.sum()), samples=len(inputs))


def with_twin(loaded: Loaded, twin: Classifier, agreement: TwinAgreement | None) -> Loaded:
    """Return the deployed model with the gradients of its twin, and a caveat on how often the two agree."""
    agreement_text = "how often they agree was not measured"
    if agreement:
        rate = binomial_rate(agreement.agree, agreement.samples)
        agreement_text = (
            f"they agree on {agreement.agree} of {agreement.samples} samples ({rate.low:.1%} to {rate.high:.1%})"
        )
    caveat = Caveat(
        "twin",
        f"Gradient attacks search with the gradients of {twin.source}; every result is of {loaded.source}. On the assessed "
        f"samples {agreement_text}. A certificate of the twin says nothing of the deployed file.",
    )
    return replace(
        loaded,
        module=WithTwin(loaded.module, twin.module).eval(),
        capabilities=frozenset({Capability.FORWARD, Capability.AUTOGRAD}),
        digest=hashlib.sha256(f"{loaded.digest} {twin.digest}".encode()).hexdigest(),
        source=f"{loaded.source} with the twin {twin.source}",
        onnx_path=None,
        caveats=(*loaded.caveats, caveat),
    )
