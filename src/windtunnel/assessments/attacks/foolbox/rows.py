"""Registry rows of foolbox 3.3.4. tests/assessments/attacks/test_catalogue.py measures their claims."""

from typing import Any

from windtunnel.assessments.attacks.rows import AT_CALL, DISTANCE_NORMS, AttackRow, Invoker, Targeting, attack_row
from windtunnel.core.contracts import Norm, Randomness, ThreatModel

WHITE, SCORE, DECISION = ThreatModel.WHITE_BOX, ThreatModel.BLACK_BOX_SCORE, ThreatModel.BLACK_BOX_DECISION
LINF, L2, L1, L0 = Norm.LINF, Norm.L2, Norm.L1, Norm.L0
FIXED, GLOBAL = Randomness.DETERMINISTIC, Randomness.GLOBAL_RNG
ITERATIVE = "gradient_sign iterative"
LP = ((LINF, "Linf"), (L2, "L2"), (L1, "L1"))


def _budgeted(
    name: str, threat: ThreatModel, norm: Norm, categories: str, randomness: Randomness, **facts: Any
) -> AttackRow:
    """Return an attack that is given its epsilon at the call. facts: further fields of its row."""
    return attack_row("foolbox", name, threat, norm, categories, randomness, epsilon=AT_CALL, **facts)


def _gradient(suffix: str, categories: str, randomness: Randomness) -> tuple[AttackRow, ...]:
    """Return an iterative gradient attack in its three norms."""
    facts: dict[str, Any] = {"step": "abs_stepsize", "steps": "steps", "targeting": Targeting.YES}
    facts["fixed_by"] = (("random_start", False),) if randomness is GLOBAL else ()
    return tuple(_budgeted(f"{prefix}{suffix}", WHITE, norm, categories, randomness, **facts) for norm, prefix in LP)


def _noise(name: str, norm: Norm) -> AttackRow:
    """Random noise scaled to epsilon; its repeated forms need only the decision."""
    return _budgeted(name, DECISION, norm, "noise", GLOBAL, keeps_clean="Repeated" in name)


def _minimal(
    name: str, threat: ThreatModel, norm: Norm, categories: str, randomness: Randomness, **facts: Any
) -> AttackRow:
    """Return an attack that looks for the smallest perturbation and takes no epsilon. facts: further fields of its row."""
    fields: dict[str, Any] = {"steps": "steps", "targeting": Targeting.YES, **facts}
    return attack_row("foolbox", name, threat, norm, categories, randomness, minimum_norm=True, **fields)


def _any_norm(
    name: str, categories: str, randomness: Randomness, steps: str | None, norm: Norm = L2, **facts: Any
) -> AttackRow:
    """Return an attack whose `distance` is the caller's choice: it only says how the result is measured."""
    fields: dict[str, Any] = {"targeting": Targeting.NO, "norm_key": "distance", "norms": DISTANCE_NORMS, **facts}
    return _minimal(name, DECISION, norm, categories, randomness, steps=steps, **fields)


START = Invoker.STARTING_POINTS
_BOUNDARY = "decision_boundary query_efficient"

ROWS: tuple[AttackRow, ...] = (
    *_gradient("PGD", ITERATIVE, GLOBAL),
    *_gradient("AdamPGD", f"adam {ITERATIVE}", GLOBAL),
    *(_budgeted(f"{prefix}FastGradientAttack", WHITE, norm, "gradient_sign", FIXED) for norm, prefix in LP),
    *_gradient("BasicIterativeAttack", ITERATIVE, FIXED),
    *_gradient("AdamBasicIterativeAttack", f"adam {ITERATIVE}", FIXED),
    *_gradient("MomentumIterativeFastGradientMethod", f"{ITERATIVE} momentum", FIXED),
    _budgeted("SparseL1DescentAttack", WHITE, L1, f"{ITERATIVE} sparse", FIXED, step="abs_stepsize", steps="steps",
              targeting=Targeting.YES),
    _minimal("L2CarliniWagnerAttack", WHITE, L2, "optimization", FIXED, step="stepsize"),
    _minimal("EADAttack", WHITE, L1, "optimization", FIXED, step="initial_stepsize"),
    _minimal("L2DeepFoolAttack", WHITE, L2, "optimization", FIXED, targeting=Targeting.NO),
    _minimal("LinfDeepFoolAttack", WHITE, LINF, "optimization", FIXED, targeting=Targeting.NO),
    _minimal("DDNAttack", WHITE, L2, "optimization", FIXED),
    _minimal("NewtonFoolAttack", WHITE, L2, "optimization", FIXED, step="stepsize", targeting=Targeting.NO),
    # It has no default for `steps`; 10 is its authors' choice for images (Miyato et al. 2015).
    _budgeted("VirtualAdversarialAttack", WHITE, L2, "optimization virtual_adversarial", GLOBAL, steps="steps",
              defaults={"steps": 10}),
    _minimal("L0FMNAttack", WHITE, L0, "minimum_norm optimization", FIXED, step="max_stepsize"),
    _minimal("L1FMNAttack", WHITE, L1, "minimum_norm optimization", FIXED, step="max_stepsize"),
    _minimal("L2FMNAttack", WHITE, L2, "minimum_norm optimization", FIXED, step="max_stepsize"),
    _minimal("LInfFMNAttack", WHITE, LINF, "minimum_norm optimization", FIXED, step="max_stepsize"),
    *(
        _minimal(name, WHITE, norm, "minimum_norm optimization", GLOBAL, step="lr", invoker=START, seconds=55)
        for name, norm in (
            ("L0BrendelBethgeAttack", L0),
            ("L1BrendelBethgeAttack", L1),
            ("L2BrendelBethgeAttack", L2),
            ("LinfinityBrendelBethgeAttack", LINF),
        )
    ),
    _noise("L2AdditiveGaussianNoiseAttack", L2),
    _noise("L2AdditiveUniformNoiseAttack", L2),
    _noise("LinfAdditiveUniformNoiseAttack", LINF),
    _noise("L2RepeatedAdditiveGaussianNoiseAttack", L2),
    _noise("L2RepeatedAdditiveUniformNoiseAttack", L2),
    _noise("LinfRepeatedAdditiveUniformNoiseAttack", LINF),
    *(
        _noise(f"L2ClippingAware{repeated}Additive{kind}NoiseAttack", L2)
        for repeated in ("", "Repeated")
        for kind in ("Gaussian", "Uniform")
    ),
    _budgeted("L2ContrastReductionAttack", DECISION, L2, "contrast noise", FIXED),
    _any_norm("BinarySearchContrastReductionAttack", "contrast noise", FIXED, "binary_search_steps"),
    _any_norm("LinearSearchContrastReductionAttack", "contrast noise", FIXED, "steps"),
    _any_norm("GaussianBlurAttack", "blur noise", FIXED, "steps"),
    _any_norm("InversionAttack", "inversion noise", FIXED, None),
    _any_norm("LinearSearchBlendedUniformNoiseAttack", "blended noise", GLOBAL, "steps"),
    _minimal("BoundaryAttack", DECISION, L2, _BOUNDARY, GLOBAL, invoker=START, counted=True),
    _minimal("HopSkipJumpAttack", DECISION, L2, _BOUNDARY, GLOBAL, invoker=START, counted=True, norm_key="constraint",
             norms=(L2, LINF)),
    _minimal("SaltAndPepperNoiseAttack", DECISION, L2, "decision_boundary noise", GLOBAL, targeting=Targeting.NO),
    _budgeted("GenAttack", SCORE, LINF, "genetic score_based", GLOBAL, steps="steps", targeting=Targeting.REQUIRED,
              counted=True),
    _any_norm("DatasetAttack", "dataset decision_boundary", GLOBAL, None, targeting=Targeting.YES, invoker=Invoker.POOL,
              summary="other assessed samples of a wrong class"),
    attack_row("foolbox", "SpatialAttack", DECISION, None, "spatial", FIXED, invoker=Invoker.UNBOUNDED,
               summary="rotations and translations; bounded by its own params, not by a norm"),
    _minimal("PointwiseAttack", DECISION, L0, "decision_boundary refinement", GLOBAL, steps=None, invoker=START,
             norms=DISTANCE_NORMS, summary="undoes changes one by one, from salt and pepper noise"),
    _any_norm("BinarizationRefinementAttack", "refinement", GLOBAL, None, norm=LINF, invoker=START,
              summary="for models that binarise their input: moves each pixel just over the threshold"),
)  # fmt: skip
