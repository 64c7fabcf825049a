"""Check a sweep before anything is computed."""

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.sweeps.grid import epsilon_grid
from windtunnel.assessments.sweeps.table import FGSM
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.sweeps import SweepEntry


def preflight(where: str, entry: SweepEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a sweep that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "sweeps")
    classifier.require(algorithm, where)
    grid, _ = epsilon_grid(entry.epsilons, where)
    if entry.budget.epsilon is not None:
        raise UserError(f"{where}.budget.epsilon: a sweep takes its epsilons from {where}.epsilons; remove it")
    if entry.budget.norm is not None and entry.budget.norm is not algorithm.norm:
        raise UserError(f"{where}.budget.norm: {algorithm.name} works under {algorithm.norm}, not {entry.budget.norm}")
    if dataset.num_classes < 2:
        raise UserError(
            f"{where}: the data has one class; no perturbation can flip a prediction that has no other class"
        )
    if algorithm is FGSM:
        if entry.params:
            raise UserError(
                unknown_word(f"{where}.params", next(iter(entry.params)), ["(none)"], what="a parameter of FGSM")
            )
        return
    if not dataset.is_image:
        raise UserError(
            f"{where}: {entry.library} attacks images; use library: windtunnel, algorithm: FGSM for tabular data"
        )
    from windtunnel.assessments.attacks.preflight import preflight as attack_preflight

    assert algorithm.norm is not None  # the table of sweeps holds none without a norm
    attack = AttackEntry(
        library=entry.library,
        algorithm=entry.algorithm,
        params=entry.params,
        budget=BudgetOverride(steps=entry.budget.steps),
    )
    attack_preflight(where, attack, Budget(norm=algorithm.norm, epsilon=grid[-1]), classifier, dataset)
