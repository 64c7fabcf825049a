"""Registry rows of the verifiers."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.core.contracts import (
    SMOOTHED_MODEL,
    Algorithm,
    AssessmentKind,
    Capability,
    Norm,
    Randomness,
    ThreatModel,
)


def _row(library: str, name: str, norm: Norm, families: str, requires: set[Capability], summary: str) -> Algorithm:
    return Algorithm(
        library,
        name,
        AssessmentKind.FORMAL_VERIFICATION,
        ThreatModel.WHITE_BOX,
        norm,
        frozenset(families.split()),
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

LIRPA: tuple[Algorithm, ...] = (
    *(_row("auto-LiRPA", method, Norm.LINF, _BOUNDS, _GRADIENTS, _WORDS[method]) for method in LIRPA_METHOD),
    *(_row("auto-LiRPA", f"{method}-l2", Norm.L2, _BOUNDS, _GRADIENTS, _WORDS[method]) for method in LIRPA_METHOD),
    *(_row("auto-LiRPA", f"{method}-l1", Norm.L1, _BOUNDS, _GRADIENTS, _WORDS[method]) for method in LIRPA_METHOD),
)
MARABOU = _row(
    "Marabou", "linf-box", Norm.LINF, "complete smt sound", {Capability.FORWARD, Capability.ONNX_GRAPH},
    "complete: decides every sample, given time (Wu et al. 2024)",
)  # fmt: skip
_SEARCH = "complete branch-and-bound bound-propagation sound"
_SEARCH_WORDS = "complete on piecewise-linear networks, given work: alpha-beta-CROWN with splits (Wang et al. 2021)"
BRANCH_AND_BOUND: tuple[Algorithm, ...] = tuple(
    _row("windtunnel", f"branch-and-bound{suffix}", norm, _SEARCH, _GRADIENTS, _SEARCH_WORDS)
    for suffix, norm in (("", Norm.LINF), ("-l2", Norm.L2), ("-l1", Norm.L1))
)
CASCADE = _row(
    "windtunnel", "cascade", Norm.LINF, "complete ensemble sound", _GRADIENTS | {Capability.ONNX_GRAPH},
    "per sample the cheapest that decides: attack, ibp, crown, branch and bound, Marabou",
)  # fmt: skip
SMOOTHING = replace(
    _row("windtunnel", "smoothing", Norm.L2, f"probabilistic sampling {SMOOTHED_MODEL}", {Capability.FORWARD},
         "randomised smoothing: a certificate of the smoothed model, with probability 1 - alpha (Cohen et al. 2019)"),
    randomness=Randomness.SELF_SEEDED,
)  # fmt: skip
MARABOU_ROWS = (MARABOU,)
OWN = (*BRANCH_AND_BOUND, CASCADE, SMOOTHING)
ALGORITHMS: tuple[Algorithm, ...] = (*LIRPA, *MARABOU_ROWS, *OWN)
