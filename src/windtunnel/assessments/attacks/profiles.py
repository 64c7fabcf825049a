"""Profiles: ensembles a user can name instead of listing attacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from windtunnel.assessments.attacks.rows import AttackRow, Invoker, algorithm
from windtunnel.core.contracts import Algorithm, Capability, Norm, Randomness, ThreatModel

LIBRARY, ADAPTIVE = "windtunnel", "adaptive"
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


def _standard(steps: int, queries: int, restarts: int = 1) -> tuple[Member, ...]:
    """AutoAttack's four members, with the iterations of its authors (Croce, Hein 2020, arXiv 2003.01690)."""
    return (
        Member("torchattacks", "APGD", {"steps": steps, "n_restarts": restarts, "loss": "ce"}, "APGD-CE"),
        Member("torchattacks", "APGDT", {"steps": steps, "n_restarts": restarts}, "APGD-T"),
        Member("torchattacks", "FAB", {"steps": steps, "multi_targeted": True, "n_restarts": restarts}, "FAB-T"),
        Member("torchattacks", "Square", {"n_queries": queries, "n_restarts": 1}, "Square"),
    )


_STANDARD = _standard(100, 5000)
_QUICK = (
    Member("torchattacks", "APGD", {"steps": 20, "loss": "ce"}, "APGD-CE"),
    Member("torchattacks", "APGDT", {"steps": 10}, "APGD-T"),
)
_RESTARTED = (
    *_STANDARD,
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
    "standard": {LINF: _STANDARD, L2: _STANDARD},
    "adaptive": {LINF: _STANDARD, L2: _STANDARD},  # and what answers the model's obstacles
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


def profile_members(profile: str, norm: Norm, num_classes: int) -> tuple[Member, ...]:
    """Return the members of a profile for a number of classes.

    For fewer than 4 classes untargeted APGD with 5 restarts stands for APGD-T, for fewer than 3 for APGD-DLR too: with
    two classes the difference of the logits decides, which cross entropy grows with. FAB-T aims at each other class.
    """
    return tuple(_fitting(member, num_classes) for member in PROFILES[profile][norm])


def _fitting(member: Member, num_classes: int) -> Member:
    needs = (
        TARGETED_CLASSES if member.algorithm == "APGDT" else DLR_CLASSES if member.params.get("loss") == "dlr" else 2
    )
    if num_classes >= needs:
        return member
    loss = "dlr" if num_classes >= DLR_CLASSES else "ce"
    params = {"steps": member.params["steps"], "n_restarts": 5, "loss": loss}
    return Member("torchattacks", "APGD", params, f"APGD-{loss.upper()} 5 restarts")


_SUMMARY = {
    "quick": "a minute's look: one gradient step, APGD, targeted APGD",
    "standard": "parameter-free, as AutoAttack: APGD-CE, APGD-T, FAB-T, Square",
    "adaptive": "standard, then what stops the model's gradients is found, replaced and attacked again",
    "exhaustive": "standard, then restarts, minimum-norm and decision-based attacks on what is left",
}


def _algorithm(name: str) -> Algorithm:
    """Return the registry row of a profile; adaptive runs on models without gradients too."""
    summary, randomness = _SUMMARY[name], Randomness.SELF_SEEDED
    row = algorithm(LIBRARY, name, ThreatModel.WHITE_BOX, LINF, "ensemble", randomness, summary=summary)
    return replace(row, requires=frozenset({Capability.FORWARD})) if name == ADAPTIVE else row


ROWS: tuple[AttackRow, ...] = tuple(
    AttackRow(
        _algorithm(name),
        "epsilon",
        norm_key="norm",
        norms=tuple(by_norm),
        invoker=Invoker.ADAPTIVE if name == ADAPTIVE else Invoker.ENSEMBLE,
        defaults={"passes": 6000, "standard": True} if name == ADAPTIVE else {},
        keeps_clean=True,
        seconds=120 if name == "exhaustive" else 0,
    )
    for name, by_norm in PROFILES.items()
)
