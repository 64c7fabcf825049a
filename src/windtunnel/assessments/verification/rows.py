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


def _algorithm(
    library: str, name: str, norm: Norm | None, categories: str, summary: str, *more: Capability
) -> Algorithm:
    """Return the registry row of a verifier that needs forward passes and `more`."""
    kind, requires = AssessmentKind.FORMAL_VERIFICATION, frozenset({Capability.FORWARD, *more})
    families, fixed = frozenset(categories.split()), Randomness.DETERMINISTIC
    return Algorithm(library, name, kind, ThreatModel.WHITE_BOX, norm, families, fixed, requires, summary=summary)


SUFFIXES = {Norm.LINF: "", Norm.L2: "-l2", Norm.L1: "-l1"}  # of the names of algorithms
_BOUNDS = "bound-propagation incomplete sound"
# auto-LiRPA's own name of each bound method, the same in 0.3 and in 0.7, and what it is.
LIRPA_METHODS = {
    "ibp": ("IBP", "interval bounds (Gowal et al. 2018)"),
    "forward": ("Forward", "linear bounds carried forward (Xu et al. 2020); memory grows with the number of pixels"),
    "crown-ibp": ("CROWN-IBP", "intervals inside, linear bounds for the margins (Zhang et al. 2020)"),
    "forward+backward": ("Forward+Backward", "forward linear bounds inside, back-substituted margins (Xu et al. 2020)"),
    "crown": ("CROWN", "linear bounds by back-substitution (Zhang et al. 2018)"),
    "alpha-crown": ("CROWN-Optimized", "linear bounds with optimised slopes (Xu et al. 2021)"),
}
LIRPA: tuple[VerifierRow, ...] = tuple(
    VerifierRow(
        _algorithm("auto-LiRPA", f"{method}{suffix}", norm, _BOUNDS, summary, Capability.AUTOGRAD), steps=(method,)
    )
    for norm, suffix in SUFFIXES.items()
    for method, (_, summary) in LIRPA_METHODS.items()
)
_SOLVER = "complete: decides every sample, given time (Wu et al. 2024)"
MARABOU = (
    VerifierRow(
        _algorithm("Marabou", "linf-box", Norm.LINF, "complete smt sound", _SOLVER, Capability.ONNX_GRAPH),
        steps=("marabou",),
    ),
)
_SEARCH = "complete branch-and-bound bound-propagation sound"
_SEARCH_WORDS = "complete on piecewise-linear networks, given work: alpha-beta-CROWN with splits (Wang et al. 2021)"
_CASCADE_WORDS = "per sample the cheapest that decides: attack, ibp, crown, branch and bound, Marabou"
_CASCADE_NEEDS = Capability.AUTOGRAD, Capability.ONNX_GRAPH
_SMOOTHING_WORDS = (
    "randomised smoothing: a certificate of the smoothed model, with probability 1 - alpha (Cohen et al. 2019)"
)
SMOOTHING = replace(
    _algorithm("windtunnel", "smoothing", Norm.L2, f"probabilistic sampling {SMOOTHED_MODEL}", _SMOOTHING_WORDS),
    randomness=Randomness.SELF_SEEDED,
)
OWN: tuple[VerifierRow, ...] = (
    *(
        VerifierRow(
            _algorithm("windtunnel", f"branch-and-bound{suffix}", norm, _SEARCH, _SEARCH_WORDS, Capability.AUTOGRAD),
            steps=("attack", "branch-and-bound"),
            params=BranchAndBound,
        )
        for norm, suffix in SUFFIXES.items()
    ),
    VerifierRow(
        _algorithm("windtunnel", "cascade", Norm.LINF, "complete ensemble sound", _CASCADE_WORDS, *_CASCADE_NEEDS),
        params=BranchAndBound,
    ),
    VerifierRow(
        SMOOTHING, params=Smoothing, assess=Lazy("windtunnel.assessments.verification.smoothing:assess_smoothing")
    ),
)
_TRANSFORMS = "bound-propagation branch-and-bound sound transformation"
_TRANSFORMS_WORDS = (
    "certifies rotation, brightness, patches and others: pixel envelopes, forms affine in the parameters, split further"
)
TRANSFORMATIONS: tuple[VerifierRow, ...] = (
    VerifierRow(
        _algorithm("transformations", "branch-and-bound", None, _TRANSFORMS, _TRANSFORMS_WORDS, Capability.AUTOGRAD),
        params=ParameterSplits,
        assess=Lazy("windtunnel.assessments.verification.transformations.certify:assess_transformation"),
        transforms=True,
    ),
)
