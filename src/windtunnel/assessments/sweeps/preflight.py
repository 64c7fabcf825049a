"""Check a sweep before anything is computed."""

from windtunnel.assessments.attacks.preflight import check_transformation
from windtunnel.assessments.attacks.preflight import preflight as attack_preflight
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.assessments.catalogue import find_algorithm, params_as
from windtunnel.assessments.sweeps.curve import epsilon_grid
from windtunnel.assessments.sweeps.table import FGSM, measure_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Block, Budget, BudgetOverride
from windtunnel.params.sweeps import SweepEntry


def preflight(where: str, entry: SweepEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for a sweep that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "sweeps")
    classifier.require(algorithm, where)
    grid, _ = epsilon_grid(entry.epsilons, where)
    attack_row = ROWS.get(algorithm.key)
    transforms = attack_row is not None and attack_row.transforms
    check_transformation(
        where, f"{entry.library} {algorithm.name}", entry.budget.norm or Norm.LINF, transforms=transforms
    )
    if transforms and max(grid) > 1:
        raise UserError(
            f"{where}.epsilons: {max(grid):g} is more than 1; of a transformation they are shares of its half range"
        )
    if entry.budget.epsilon is not None and not transforms:
        raise UserError(f"{where}.budget.epsilon: a sweep takes its epsilons from {where}.epsilons; remove it")
    if entry.budget.norm is not None and entry.budget.norm is not algorithm.norm and not transforms:
        raise UserError(f"{where}.budget.norm: {algorithm.name} works under {algorithm.norm}, not {entry.budget.norm}")
    if dataset.num_classes < 2:
        raise UserError(
            f"{where}: the data has one class; no perturbation can flip a prediction that has no other class"
        )
    if algorithm is FGSM:
        params_as(Block, entry, where)
        return
    if not dataset.is_image:
        raise UserError(
            f"{where}: {entry.library} attacks images; use library: windtunnel, algorithm: FGSM for tabular data"
        )
    settings = entry.model_dump(include={"library", "algorithm", "params"})
    attack = AttackEntry(**settings, budget=BudgetOverride(steps=entry.budget.steps))
    attack_preflight(where, attack, Budget(norm=measure_of(algorithm, entry), epsilon=grid[-1]), classifier, dataset)
