"""Check a latent assessment before anything is computed. The generative models are checked by their own stage."""

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.entry import Budget, BudgetOverride
from windtunnel.params.latent import LatentEntry


def preflight(where: str, entry: LatentEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for an assessment that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "latent")
    classifier.require(algorithm, where)
    classifier.criterion.require_top_1(where, "a change of class in a latent space is not defined")
    if entry.params:
        options = ("generated", "codes", "decay_epsilon", "encoding", "bounded", "minimum", "conventional", "models")
        raise UserError(
            unknown_word(f"{where}.params", next(iter(entry.params)), options, what="a parameter; beside it")
        )
    if entry.budget != BudgetOverride():
        raise UserError(
            f"{where}.budget: a latent search has radii of its own, {where}.bounded.rho and {where}.minimum.rho; remove it"
        )
    if entry.minimum.rho < max(entry.bounded.rho):
        raise UserError(
            f"{where}.minimum.rho: {entry.minimum.rho:g} is smaller than bounded.rho {max(entry.bounded.rho):g}; the minimum is "
            f"looked for in the larger ball"
        )
    for key, search in (("minimum", entry.minimum), ("bounded", entry.bounded)):
        if search.steps * search.step_size < 1:
            raise UserError(
                f"{where}.{key}: {search.steps} steps of {search.step_size:g} of the radius end before its boundary; make "
                f"steps x step_size at least 1"
            )
    if dataset.num_classes < 2:
        raise UserError(
            f"{where}: the data has one class; no perturbation can flip a prediction that has no other class"
        )
