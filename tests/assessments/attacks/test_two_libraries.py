"""Where both libraries have an attack they agree at equal settings on 200 samples, or docs/algorithms.md says why not."""

import pytest

from windtunnel.assessments.attacks.assess import assess
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

EPSILON, STEP = 0.06, 0.006
LINF = {"norm": "Linf", "epsilon": EPSILON, "step_size": STEP, "steps": 20}
L2 = {"norm": "L2", "epsilon": 0.4, "step_size": 0.04, "steps": 30}
PAIRS = {
    "FGSM": (("FGSM", {}, {"epsilon": EPSILON}), ("LinfFastGradientAttack", {}, {"epsilon": EPSILON})),
    "BIM": (("BIM", {}, LINF), ("LinfBasicIterativeAttack", {}, LINF)),
    "PGD-Linf": (("PGD", {}, LINF), ("LinfPGD", {}, LINF)),
    "PGD-L2": (("PGDL2", {}, L2), ("L2PGD", {}, L2)),
    "MIFGSM": (("MIFGSM", {}, LINF), ("LinfMomentumIterativeFastGradientMethod", {}, LINF)),
    "DeepFool": (
        ("DeepFool", {}, {"norm": "L2", "epsilon": 0.4}),
        ("L2DeepFoolAttack", {}, {"norm": "L2", "epsilon": 0.4}),
    ),
    "CW": (
        ("CW", {"c": 10, "steps": 300}, {"norm": "L2", "epsilon": 0.4}),
        (
            "L2CarliniWagnerAttack",
            {"binary_search_steps": 5, "steps": 300, "initial_const": 1},
            {"norm": "L2", "epsilon": 0.4},
        ),
    ),
    "EAD": (
        ("EADL1", {"beta": 0.01, "max_iterations": 300}, {"norm": "L1", "epsilon": 2.0}),
        ("EADAttack", {"steps": 300, "decision_rule": "L1"}, {"norm": "L1", "epsilon": 2.0}),
    ),
}


# docs/algorithms.md says why: torchattacks stops on the boundary itself, and searches no constant.
WEAKER_IN_TORCHATTACKS = ("CW", "DeepFool")


def accuracies_of(name: str, subject: Subject) -> list[float]:
    found = []
    for library, (algorithm, params, budget) in zip(("torchattacks", "foolbox"), PAIRS[name], strict=True):
        entry = AttackEntry(library=library, algorithm=algorithm, params=params, budget=budget)
        result = assess("it", entry, Budget(norm=Norm.LINF, epsilon=EPSILON), subject)
        found.append(float(result.metrics["adversarial_accuracy"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAIRS if name not in WEAKER_IN_TORCHATTACKS])
def test_two_libraries_agree_within_two_points(name: str, digits_subject: Subject) -> None:
    torchattacks, foolbox = accuracies_of(name, digits_subject)
    assert abs(torchattacks - foolbox) <= 0.02 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", WEAKER_IN_TORCHATTACKS)
def test_where_they_differ_foolbox_is_the_stronger(name: str, digits_subject: Subject) -> None:
    torchattacks, foolbox = accuracies_of(name, digits_subject)
    assert foolbox + 0.02 < torchattacks
