"""Registry rows of torchattacks 3.5.1. tests/assessments/attacks/test_catalogue.py measures their claims."""

from dataclasses import replace
from typing import Any

from windtunnel.assessments.attacks.rows import AttackRow, Invoker, Targeting, algorithm
from windtunnel.core.contracts import Norm, Randomness, ThreatModel

WHITE, SCORE = ThreatModel.WHITE_BOX, ThreatModel.BLACK_BOX_SCORE
LINF, L2, L1, L0 = Norm.LINF, Norm.L2, Norm.L1, Norm.L0
FIXED, GLOBAL, OWN = Randomness.DETERMINISTIC, Randomness.GLOBAL_RNG, Randomness.SELF_SEEDED
STEP = "gradient_sign"
ITERATIVE = f"{STEP} iterative"
MOMENTUM = f"{ITERATIVE} momentum"
TRANSFER = f"{MOMENTUM} transfer"
NO_START = (("random_start", False),)
NO_DIVERSITY = (*NO_START, ("diversity_prob", 0))


def _iterative(
    name: str, norm: Norm, categories: str, randomness: Randomness, targeting: Targeting = Targeting.YES, **facts: Any
) -> AttackRow:
    """Return an attack of the usual constructor (eps, alpha, steps). facts: further fields of its row."""
    row = algorithm("torchattacks", name, WHITE, norm, categories, randomness)
    return AttackRow(row, "eps", "alpha", "steps", targeting=targeting, **facts)


def _own_distance(
    name: str,
    threat: ThreatModel,
    norm: Norm,
    categories: str,
    randomness: Randomness,
    steps: str | None,
    *,
    minimum_norm: bool = True,
    targeting: Targeting = Targeting.YES,
    **facts: Any,
) -> AttackRow:
    """Return an attack that takes no epsilon. facts: further fields of its row."""
    row = algorithm("torchattacks", name, threat, norm, categories, randomness, minimum_norm=minimum_norm)
    return AttackRow(row, steps=steps, targeting=targeting, **facts)


def _auto(
    name: str,
    categories: str,
    steps: str | None,
    *,
    threat: ThreatModel = WHITE,
    randomness: Randomness = OWN,
    minimum_norm: bool = False,
    summary: str = "",
    norms: tuple[Norm, ...] = (LINF, L2),
    **facts: Any,
) -> AttackRow:
    """Return a member of AutoAttack: takes the norm, and a seed of its own with which it resets torch's global stream.

    facts: further fields of its row.
    """
    row = algorithm(
        "torchattacks", name, threat, LINF, categories, randomness, minimum_norm=minimum_norm, summary=summary
    )
    return AttackRow(row, "eps", steps=steps, seed="seed", norm_key="norm", norms=norms, keeps_clean=True, **facts)


ROWS: tuple[AttackRow, ...] = (
    AttackRow(algorithm("torchattacks", "FGSM", WHITE, LINF, STEP, FIXED), "eps", targeting=Targeting.YES),
    _iterative("BIM", LINF, ITERATIVE, FIXED),
    _iterative("PGD", LINF, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _iterative("PGDL2", L2, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _iterative("MIFGSM", LINF, MOMENTUM, FIXED),
    _own_distance("CW", WHITE, L2, "optimization", FIXED, "steps", step="lr"),
    _own_distance("DeepFool", WHITE, L2, "optimization", FIXED, "steps", targeting=Targeting.NO),
    _auto("AutoAttack", "auto ensemble", None, classes="n_classes", min_classes=4),
    replace(_auto("Square", "score_based", "n_queries", threat=SCORE, targeting=Targeting.YES), counted=True),
    replace(
        _own_distance("OnePixel", SCORE, L0, "evolutionary score_based", GLOBAL, "steps", minimum_norm=False),
        counted=True,
    ),  # scipy's differential evolution on numpy's stream
    _auto("APGD", "auto gradient_sign iterative", "steps"),
    _auto("APGDT", "auto gradient_sign iterative", "steps", classes="n_classes", min_classes=4,
          summary="aims at each other class in turn; any wrong class is a success"),
    _iterative("DIFGSM", LINF, TRANSFER, GLOBAL, fixed_by=NO_DIVERSITY),
    _own_distance("EADEN", WHITE, L1, "optimization", FIXED, "max_iterations", step="lr"),
    _own_distance("EADL1", WHITE, L1, "optimization", FIXED, "max_iterations", step="lr"),
    _iterative("EOTPGD", LINF, ITERATIVE, GLOBAL, fixed_by=NO_START),
    _auto(
        "FAB",
        "auto optimization",
        "steps",
        norms=(LINF, L2, L1),
        classes="n_classes",
        minimum_norm=True,
        invoker=Invoker.ANY_DISTANCE,
        randomness=FIXED,  # it draws only the starts of further restarts; measured equal with three of them
    ),
    AttackRow(algorithm("torchattacks", "FFGSM", WHITE, LINF, STEP, GLOBAL), "eps", "alpha", targeting=Targeting.YES),
    AttackRow(
        algorithm("torchattacks", "GN", ThreatModel.BLACK_BOX_DECISION, L2, "noise", GLOBAL,
                  summary="Gaussian noise of a given std; needs no query")
    ),
    # Its saliency map compares all pairs of inputs.
    _own_distance("JSMA", WHITE, L0, "saliency", FIXED, None, minimum_norm=False, invoker=Invoker.NEXT_CLASS,
                  seconds=42, growth=2),
    _iterative("Jitter", LINF, ITERATIVE, GLOBAL, fixed_by=(*NO_START, ("std", 0))),
    _iterative("NIFGSM", LINF, TRANSFER, FIXED),
    _iterative("PGDRS", LINF, f"{ITERATIVE} randomized_smoothing", GLOBAL),
    _iterative("PGDRSL2", L2, f"{ITERATIVE} randomized_smoothing", GLOBAL),
    AttackRow(algorithm("torchattacks", "PIFGSM", WHITE, LINF, f"{ITERATIVE} transfer", FIXED), "max_epsilon",
              steps="num_iter_set", three_channels=True),
    AttackRow(algorithm("torchattacks", "PIFGSMPP", WHITE, LINF, f"{ITERATIVE} transfer", FIXED), "max_epsilon",
              steps="num_iter_set", three_channels=True, targeting=Targeting.YES),
    replace(_own_distance("Pixle", SCORE, L0, "score_based", GLOBAL, "max_iterations", minimum_norm=False), counted=True),
    _iterative("RFGSM", LINF, ITERATIVE, GLOBAL),
    _iterative("SINIFGSM", LINF, TRANSFER, FIXED),
    AttackRow(algorithm("torchattacks", "SPSA", SCORE, LINF, "score_based", GLOBAL), "eps", "lr", "nb_iter",
              targeting=Targeting.YES, counted=True),
    _own_distance("SparseFool", WHITE, L0, "optimization sparse", FIXED, "steps", targeting=Targeting.NO),
    _iterative("TIFGSM", LINF, TRANSFER, GLOBAL, three_channels=True, fixed_by=NO_DIVERSITY),
    _iterative("TPGD", LINF, ITERATIVE, GLOBAL, targeting=Targeting.NO),
    _iterative("UPGD", LINF, ITERATIVE, FIXED),
    _iterative("VMIFGSM", LINF, f"{MOMENTUM} variance_tuned", GLOBAL),
    _iterative("VNIFGSM", LINF, f"{MOMENTUM} variance_tuned", GLOBAL),
    AttackRow(
        algorithm("torchattacks", "LGV", WHITE, LINF, f"{ITERATIVE} transfer", GLOBAL,
                  summary="trains surrogates of the model on the assessed samples and attacks those"),
        "eps",
        "alpha",
        "steps",
        invoker=Invoker.SURROGATES,
    ),
    AttackRow(
        algorithm("torchattacks", "MultiAttack", WHITE, LINF, "ensemble", OWN,
                  summary="params.attacks: two or more Linf attacks of torchattacks, each on what is left: [FGSM, {PGD: {steps: 20}}]"),
        "eps",
        invoker=Invoker.MANY_ATTACKS,
        keeps_clean=True,
    ),
)  # fmt: skip
