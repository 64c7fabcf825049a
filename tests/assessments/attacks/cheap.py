"""Reduced parameters, so that every algorithm of the catalogue runs in a test, and budgets that suit each norm."""

from windtunnel.assessments.attacks.rows import AttackRow, Targeting
from windtunnel.core.contracts import Norm
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

BUDGETS = {Norm.LINF: 0.15, Norm.L2: 1.0, Norm.L1: 6.0, Norm.L0: 8.0}
GLOBAL = Budget(norm=Norm.LINF, epsilon=BUDGETS[Norm.LINF])
_REDUCED: dict[str, dict[str, object]] = {
    "MultiAttack": {"attacks": ["PGD", "APGD"]},
    "TIFGSM": {"resize_rate": 0.5},  # 0.9 of eight pixels leaves one choice
    "AutoAttack": {},
    "Square": {"n_queries": 60},
    "OnePixel": {"steps": 2, "popsize": 3},
    "EADEN": {"max_iterations": 10, "binary_search_steps": 3},
    "EADL1": {"max_iterations": 10, "binary_search_steps": 3},
    "DeepFool": {"steps": 10},
    "SparseFool": {"steps": 3},
    "JSMA": {"gamma": 0.1},
    "Pixle": {"restarts": 2, "max_iterations": 3, "x_dimensions": [2, 4], "y_dimensions": [2, 4]},
    "LGV": {"epochs": 1, "nb_models_epoch": 2},
    "L2CarliniWagnerAttack": {"binary_search_steps": 3, "steps": 30},
    "EADAttack": {"binary_search_steps": 3, "steps": 30},
    "DDNAttack": {"steps": 20},
    "NewtonFoolAttack": {"steps": 20},
    "BoundaryAttack": {"steps": 40},
    "HopSkipJumpAttack": {"steps": 2, "max_gradient_eval_steps": 50},
    "GenAttack": {"steps": 20},
    "LinearSearchContrastReductionAttack": {"steps": 50},
    "GaussianBlurAttack": {"steps": 20},
    "LinearSearchBlendedUniformNoiseAttack": {"steps": 20, "directions": 20},
    "SaltAndPepperNoiseAttack": {"steps": 30},
}


# Noise this small breaks nothing, and a repeated attack that breaks nothing returns the clean image.
_WIDER = {"LinfRepeatedAdditiveUniformNoiseAttack": 0.6}


def cheap_params(row: AttackRow) -> dict[str, object]:
    """Parameters that make an attack quick."""
    name = row.algorithm.name
    if name.endswith("FMNAttack"):
        return {"steps": 20}
    if name.endswith("BrendelBethgeAttack"):
        return {"steps": 5}
    return _REDUCED.get(name, {})


def cheap_epsilon(row: AttackRow) -> float:
    """The size of the budget of `cheap_entry`."""
    return _WIDER.get(row.algorithm.name, BUDGETS[row.algorithm.norm or Norm.LINF])


def cheap_entry(row: AttackRow, **keys: object) -> AttackEntry:
    """An entry that runs an algorithm with reduced steps, under its own norm."""
    norm = row.algorithm.norm or Norm.LINF
    target = {"target_classes": "next"} if row.targeting is Targeting.REQUIRED else {}
    return AttackEntry(
        library=row.algorithm.library,
        algorithm=row.algorithm.name,
        params=cheap_params(row),
        budget={"norm": norm, "epsilon": cheap_epsilon(row)},
        **{**target, **keys},
    )


def needs_own_model(row: AttackRow) -> bool:
    """The refinement of binarised inputs runs only on a model that binarises."""
    return row.algorithm.name == "BinarizationRefinementAttack"


def is_ensemble(row: AttackRow) -> bool:
    """Our own profiles, tested apart."""
    return row.is_ensemble
