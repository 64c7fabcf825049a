"""Registry rows of torchattacks 3.5.1. tests/assessments/attacks/test_catalogue.py measures their claims."""

from typing import Any

from windtunnel.assessments.attacks.rows import STOP_EARLY, AttackRow, Invoker, Targeting, attack_row
from windtunnel.core.contracts import Norm, Randomness, ThreatModel

WHITE, SCORE = ThreatModel.WHITE_BOX, ThreatModel.BLACK_BOX_SCORE
LINF, L2, L1, L0 = Norm.LINF, Norm.L2, Norm.L1, Norm.L0
FIXED, GLOBAL, OWN = Randomness.DETERMINISTIC, Randomness.GLOBAL_RNG, Randomness.SELF_SEEDED
STEP = "gradient_sign"
ITERATIVE = f"{STEP} iterative"
MOMENTUM = f"{ITERATIVE} momentum"
TRANSFER = f"{MOMENTUM} transfer"
_EARLY = {STOP_EARLY: False}
NO_START = (("random_start", False),)
NO_DIVERSITY = (*NO_START, ("diversity_prob", 0))


def _row(name: str, norm: Norm | None, categories: str, randomness: Randomness, **facts: Any) -> AttackRow:
    """Return the row of an attack that can aim at a class and needs gradients, unless the facts of its call say otherwise."""
    fields: dict[str, Any] = {"threat_model": WHITE, "targeting": Targeting.YES, **facts}
    return attack_row("torchattacks", name, norm=norm, categories=categories, randomness=randomness, **fields)


def _iterative(name: str, norm: Norm, categories: str, randomness: Randomness, **facts: Any) -> AttackRow:
    """Return an attack of the usual constructor (eps, alpha, steps). facts: further fields of its row."""
    return _row(name, norm, categories, randomness, epsilon="eps", step="alpha", steps="steps", **facts)


def _auto(name: str, categories: str, steps: str | None, randomness: Randomness = OWN, **facts: Any) -> AttackRow:
    """Return a member of AutoAttack: takes the norm, and a seed of its own with which it resets torch's global stream.

    facts: further fields of its row.
    """
    fields: dict[str, Any] = {"norms": (LINF, L2), "targeting": Targeting.NO, "keeps_clean": True, **facts}
    return _row(name, LINF, categories, randomness, epsilon="eps", steps=steps, seed="seed", norm_key="norm", **fields)


def _patchwise(name: str, **facts: Any) -> AttackRow:
    """Return a patch-wise attack, whose kernels are built for three channels. facts: further fields of its row."""
    fields = {"epsilon": "max_epsilon", "steps": "num_iter_set", "three_channels": True, **facts}
    return _row(name, LINF, f"{ITERATIVE} transfer", FIXED, **fields)


_LGV = "trains surrogates of the model on the assessed samples and attacks those"
_MULTI_ATTACK = (
    "params.attacks: two or more Linf attacks of torchattacks, each on what is left: [FGSM, {PGD: {steps: 20}}]"
)
_AUTO = "auto gradient_sign iterative"
_AIMS = "aims at each other class in turn; any wrong class is a success"
_NO_AIM = Targeting.NO

ROWS: tuple[AttackRow, ...] = (
    _row("FGSM", LINF, STEP, FIXED, epsilon="eps"),
    _iterative("BIM", LINF, ITERATIVE, FIXED),
    _iterative("PGD", LINF, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _iterative("PGDL2", L2, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _iterative("MIFGSM", LINF, MOMENTUM, FIXED),
    _row("CW", L2, "optimization", FIXED, steps="steps", minimum_norm=True, step="lr"),
    _row("DeepFool", L2, "optimization", FIXED, steps="steps", minimum_norm=True, targeting=_NO_AIM),
    _auto("AutoAttack", "auto ensemble", None, classes="n_classes", min_classes=4),
    _auto(
        "Square", "score_based", "n_queries", threat_model=SCORE, targeting=Targeting.YES, counted=True, defaults=_EARLY
    ),
    # scipy's differential evolution on numpy's stream.
    _row("OnePixel", L0, "evolutionary score_based", GLOBAL, threat_model=SCORE, steps="steps", counted=True),
    _auto("APGD", _AUTO, "steps", defaults=_EARLY),
    _auto("APGDT", _AUTO, "steps", classes="n_classes", min_classes=4, summary=_AIMS, defaults=_EARLY),
    _iterative("DIFGSM", LINF, TRANSFER, GLOBAL, fixed_by=NO_DIVERSITY),
    _row("EADEN", L1, "optimization", FIXED, steps="max_iterations", minimum_norm=True, step="lr"),
    _row("EADL1", L1, "optimization", FIXED, steps="max_iterations", minimum_norm=True, step="lr"),
    _iterative("EOTPGD", LINF, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _auto(
        "FAB",
        "auto optimization",
        "steps",
        FIXED,  # it draws only the starts of further restarts; measured equal with three of them
        norms=(LINF, L2, L1),
        classes="n_classes",
        minimum_norm=True,
        invoker=Invoker.ANY_DISTANCE,
        defaults=_EARLY,
    ),
    _row("FFGSM", LINF, STEP, GLOBAL, epsilon="eps", step="alpha"),
    _row(
        "GN",
        L2,
        "noise",
        GLOBAL,
        threat_model=ThreatModel.BLACK_BOX_DECISION,
        targeting=_NO_AIM,
        summary="Gaussian noise of a given std; needs no query",
    ),
    # Its saliency map compares all pairs of inputs.
    _row("JSMA", L0, "saliency", FIXED, invoker=Invoker.NEXT_CLASS, seconds=42, growth=2),
    _iterative("Jitter", LINF, ITERATIVE, GLOBAL, fixed_by=(*NO_START, ("std", 0))),
    _iterative("NIFGSM", LINF, TRANSFER, FIXED),
    _iterative("PGDRS", LINF, f"{ITERATIVE} randomized_smoothing", GLOBAL),
    _iterative("PGDRSL2", L2, f"{ITERATIVE} randomized_smoothing", GLOBAL),
    _patchwise("PIFGSM", targeting=_NO_AIM),
    _patchwise("PIFGSMPP"),
    _row("Pixle", L0, "score_based", GLOBAL, threat_model=SCORE, steps="max_iterations", counted=True),
    _iterative("RFGSM", LINF, ITERATIVE, GLOBAL),
    _iterative("SINIFGSM", LINF, TRANSFER, FIXED),
    _row(
        "SPSA", LINF, "score_based", GLOBAL, threat_model=SCORE, epsilon="eps", step="lr", steps="nb_iter", counted=True
    ),
    _row("SparseFool", L0, "optimization sparse", FIXED, steps="steps", minimum_norm=True, targeting=_NO_AIM),
    _iterative("TIFGSM", LINF, TRANSFER, GLOBAL, three_channels=True, fixed_by=NO_DIVERSITY),
    _iterative("TPGD", LINF, ITERATIVE, GLOBAL, targeting=_NO_AIM),
    _iterative("UPGD", LINF, ITERATIVE, FIXED),
    _iterative("VMIFGSM", LINF, f"{MOMENTUM} variance_tuned", GLOBAL),
    _iterative("VNIFGSM", LINF, f"{MOMENTUM} variance_tuned", GLOBAL),
    _iterative(
        "LGV", LINF, f"{ITERATIVE} transfer", GLOBAL, invoker=Invoker.SURROGATES, targeting=_NO_AIM, summary=_LGV
    ),
    _row(
        "MultiAttack",
        LINF,
        "ensemble",
        OWN,
        epsilon="eps",
        invoker=Invoker.MANY_ATTACKS,
        keeps_clean=True,
        targeting=_NO_AIM,
        summary=_MULTI_ATTACK,
    ),
)
