"""Profiles: ensembles a user can name instead of listing attacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from windtunnel.assessments.attacks.rows import STOP_EARLY, AttackRow, Invoker, algorithm
from windtunnel.core.contracts import Algorithm, Capability, Norm, Randomness, ThreatModel

LIBRARY, STANDARD, ADAPTIVE = "windtunnel", "standard", "adaptive"
LITERAL = "literal"  # parameter of `standard`: the members of AutoAttack as they are, to the last step
LINF, L2 = Norm.LINF, Norm.L2


@dataclass(frozen=True, slots=True)
class Member:
    """One attack of an ensemble, with the parameters its library takes."""

    library: str
    algorithm: str
    params: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """Return its display name in reports."""
        return self.label or self.algorithm


def _standard(steps: int, queries: int, restarts: int = 1, *, stop_early: bool = False) -> tuple[Member, ...]:
    """AutoAttack's four members, with the iterations of its authors (Croce, Hein 2020, arXiv 2003.01690).

    stop_early: each member leaves hopeless samples.
    """
    early = {STOP_EARLY: True} if stop_early else {}
    return (
        Member("torchattacks", "APGD", {"steps": steps, "n_restarts": restarts, "loss": "ce", **early}, "APGD-CE"),
        Member("torchattacks", "APGDT", {"steps": steps, "n_restarts": restarts, **early}, "APGD-T"),
        Member(
            "torchattacks", "FAB", {"steps": steps, "multi_targeted": True, "n_restarts": restarts, **early}, "FAB-T"
        ),
        Member("torchattacks", "Square", {"n_queries": queries, "n_restarts": 1, **early}, "Square"),
    )


_STANDARD, _LITERAL = _standard(100, 5000, stop_early=True), _standard(100, 5000)
_QUICK = (
    Member("torchattacks", "APGD", {"steps": 20, "loss": "ce"}, "APGD-CE"),
    Member("torchattacks", "APGDT", {"steps": 10}, "APGD-T"),
)
_RESTARTED = (
    *_LITERAL,
    Member("torchattacks", "APGD", {"steps": 100, "n_restarts": 5, "loss": "dlr"}, "APGD-DLR"),
    *_standard(200, 10_000, restarts=3),
)
_DECISION = Member("foolbox", "HopSkipJumpAttack", {"steps": 32, "max_gradient_eval_steps": 1000})

# Cheap members first: each attacks only what those before it left.
PROFILES: dict[str, dict[Norm, tuple[Member, ...]]] = {
    "quick": {
        LINF: (Member("torchattacks", "FGSM"), *_QUICK),
        L2: (Member("foolbox", "L2FastGradientAttack"), *_QUICK),
    },
    STANDARD: {LINF: _STANDARD, L2: _STANDARD},
    ADAPTIVE: {LINF: _STANDARD, L2: _STANDARD},  # and what answers the model's obstacles
    "exhaustive": {
        LINF: (
            *_RESTARTED,
            Member("foolbox", "LInfFMNAttack", {"steps": 500}),
            Member("foolbox", "LinfDeepFoolAttack"),
            _DECISION,
        ),
        L2: (
            *_RESTARTED,
            Member("foolbox", "DDNAttack", {"steps": 500}),
            Member("foolbox", "L2FMNAttack", {"steps": 500}),
            Member("torchattacks", "CW", {"steps": 500}),
            _DECISION,
        ),
    },
}

TARGETED_CLASSES, DLR_CLASSES = 4, 3  # the losses of APGD-T and APGD-DLR divide by the fourth and the third best logit


def profile_members(profile: str, norm: Norm, num_classes: int, *, literal: bool = False) -> tuple[Member, ...]:
    """Return the members of a profile for a number of classes; none leaves a sample early if `literal`.

    For fewer than 4 classes untargeted APGD with 5 restarts stands for APGD-T, for fewer than 3 for APGD-DLR too: with
    two classes the difference of the logits decides, which cross entropy grows with. FAB-T aims at each other class.
    """
    members = _LITERAL if literal else PROFILES[profile][norm]
    return tuple(_fitting(member, num_classes) for member in members)


def _fitting(member: Member, num_classes: int) -> Member:
    needs = (
        TARGETED_CLASSES if member.algorithm == "APGDT" else DLR_CLASSES if member.params.get("loss") == "dlr" else 2
    )
    if num_classes >= needs:
        return member
    loss = "dlr" if num_classes >= DLR_CLASSES else "ce"
    params = {**member.params, "n_restarts": 5, "loss": loss}
    return Member("torchattacks", "APGD", params, f"APGD-{loss.upper()} 5 restarts")


_SUMMARY = {
    "quick": "a minute's look: one gradient step, APGD, targeted APGD",
    STANDARD: "APGD-CE, APGD-T, FAB-T and Square as in AutoAttack, which leave hopeless samples early (params.literal: true: none)",
    ADAPTIVE: "standard, then what stops the model's gradients is found, replaced and attacked again",
    "exhaustive": "standard, then restarts, minimum-norm and decision-based attacks on what is left",
}


def _algorithm(name: str) -> Algorithm:
    """Return the registry row of a profile; adaptive runs on models without gradients too."""
    summary, randomness = _SUMMARY[name], Randomness.SELF_SEEDED
    row = algorithm(LIBRARY, name, ThreatModel.WHITE_BOX, LINF, "ensemble", randomness, summary=summary)
    return replace(row, requires=frozenset({Capability.FORWARD})) if name == ADAPTIVE else row


_DEFAULTS: dict[str, dict[str, object]] = {STANDARD: {LITERAL: False}, ADAPTIVE: {"passes": 6000, STANDARD: True}}

ROWS: tuple[AttackRow, ...] = tuple(
    AttackRow(
        _algorithm(name),
        "epsilon",
        norm_key="norm",
        norms=tuple(by_norm),
        invoker=Invoker.ADAPTIVE if name == ADAPTIVE else Invoker.ENSEMBLE,
        defaults=_DEFAULTS.get(name, {}),
        keeps_clean=True,
        seconds=120 if name == "exhaustive" else 0,
    )
    for name, by_norm in PROFILES.items()
)
