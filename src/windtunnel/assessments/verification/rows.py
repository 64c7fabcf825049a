"""Registry rows of our verifiers, and the facts by which an entry of one is run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from windtunnel.core.contracts import (
    SMOOTHED_MODEL,
    Algorithm,
    AssessmentKind,
    Capability,
    Norm,
    Randomness,
    ThreatModel,
)
from windtunnel.params.entry import Block
from windtunnel.params.verification import BranchAndBound, ParameterSplits, Smoothing, VerificationEntry
from windtunnel.registry.plugins import Lazy


@dataclass(frozen=True, slots=True)
class VerifierRow:
    """One registry row, and what an entry of it is made of.

    steps: those that decide, by their names in the records of the libraries; none where the entry names them. params: the
    schema of what a user may give under `params`; None for nothing. assess: (name, entry, budget, subject) ->
    AssessmentResult, for what is not made of steps. transforms: its regions are transformations, not balls.
    """

    algorithm: Algorithm
    steps: tuple[str, ...] = ()
    params: type[Block] | None = None
    assess: Lazy[Callable[..., Any]] | None = None
    transforms: bool = False

    @property
    def of_entry(self) -> bool:
        """Return whether the entry names the steps."""
        return not self.steps and self.assess is None

    def steps_for(self, entry: VerificationEntry) -> tuple[str, ...]:
        """Return the steps that decide an entry, of which a single verifier has one or two; none for what goes its own way."""
        return entry.steps if self.of_entry else self.steps


def _row(
    library: str, name: str, norm: Norm | None, categories: str, requires: set[Capability], summary: str
) -> Algorithm:
    return Algorithm(
        library,
        name,
        AssessmentKind.FORMAL_VERIFICATION,
        ThreatModel.WHITE_BOX,
        norm,
        frozenset(categories.split()),
        Randomness.DETERMINISTIC,
        frozenset(requires),
        summary=summary,
    )


# auto-LiRPA's own name of each bound method, the same in 0.3 and in 0.7.
LIRPA_METHOD = {
    "ibp": "IBP",
    "forward": "Forward",
    "crown-ibp": "CROWN-IBP",
    "forward+backward": "Forward+Backward",
    "crown": "CROWN",
    "alpha-crown": "CROWN-Optimized",
}
_WORDS = {
    "ibp": "interval bounds (Gowal et al. 2018)",
    "forward": "linear bounds carried forward (Xu et al. 2020); memory grows with the number of pixels",
    "crown-ibp": "intervals inside, linear bounds for the margins (Zhang et al. 2020)",
    "forward+backward": "forward linear bounds inside, back-substituted margins (Xu et al. 2020)",
    "crown": "linear bounds by back-substitution (Zhang et al. 2018)",
    "alpha-crown": "linear bounds with optimised slopes (Xu et al. 2021)",
}
_GRADIENTS = {Capability.FORWARD, Capability.AUTOGRAD}
_BOUNDS = "bound-propagation incomplete sound"

LIRPA: tuple[VerifierRow, ...] = tuple(
    VerifierRow(_row("auto-LiRPA", f"{method}{suffix}", norm, _BOUNDS, _GRADIENTS, _WORDS[method]), (method,))
    for suffix, norm in (("", Norm.LINF), ("-l2", Norm.L2), ("-l1", Norm.L1))
    for method in LIRPA_METHOD
)
_SOLVER_WORDS = "complete: decides every sample, given time (Wu et al. 2024)"
_ON_ONNX = {Capability.FORWARD, Capability.ONNX_GRAPH}
MARABOU = (
    VerifierRow(_row("Marabou", "linf-box", Norm.LINF, "complete smt sound", _ON_ONNX, _SOLVER_WORDS), ("marabou",)),
)
_SEARCH = "complete branch-and-bound bound-propagation sound"
_SEARCH_WORDS = "complete on piecewise-linear networks, given work: alpha-beta-CROWN with splits (Wang et al. 2021)"
_SAMPLING = f"probabilistic sampling {SMOOTHED_MODEL}"
_SMOOTHING_WORDS = (
    "randomised smoothing: a certificate of the smoothed model, with probability 1 - alpha (Cohen et al. 2019)"
)
_SMOOTHED = _row("windtunnel", "smoothing", Norm.L2, _SAMPLING, {Capability.FORWARD}, _SMOOTHING_WORDS)
SMOOTHING = replace(_SMOOTHED, randomness=Randomness.SELF_SEEDED)
OWN: tuple[VerifierRow, ...] = (
    *(
        VerifierRow(
            _row("windtunnel", f"branch-and-bound{suffix}", norm, _SEARCH, _GRADIENTS, _SEARCH_WORDS),
            ("attack", "branch-and-bound"),
            BranchAndBound,
        )
        for suffix, norm in (("", Norm.LINF), ("-l2", Norm.L2), ("-l1", Norm.L1))
    ),
    VerifierRow(
        _row(
            "windtunnel",
            "cascade",
            Norm.LINF,
            "complete ensemble sound",
            _GRADIENTS | {Capability.ONNX_GRAPH},
            "per sample the cheapest that decides: attack, ibp, crown, branch and bound, Marabou",
        ),
        params=BranchAndBound,
    ),
    VerifierRow(
        SMOOTHING, params=Smoothing, assess=Lazy("windtunnel.assessments.verification.smoothing:assess_smoothing")
    ),
)
TRANSFORMATIONS: tuple[VerifierRow, ...] = (
    VerifierRow(
        _row(
            "transformations",
            "branch-and-bound",
            None,
            "bound-propagation branch-and-bound sound transformation",
            {Capability.FORWARD, Capability.AUTOGRAD},
            "certifies rotation, brightness, patches and others: pixel envelopes, forms affine in the parameters, split further",
        ),
        params=ParameterSplits,
        assess=Lazy("windtunnel.assessments.verification.transformations.certify:assess_transformation"),
        transforms=True,
    ),
)
