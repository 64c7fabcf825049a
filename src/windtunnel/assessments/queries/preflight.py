"""Check an entry of `queries` before anything is computed."""

from windtunnel.assessments.attacks.preflight import check_data
from windtunnel.assessments.attacks.preflight import preflight as attack_preflight
from windtunnel.assessments.attacks.targets import check_chosen_targets
from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.queries.settings import as_attack, library_row, region_of, search_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.attacks import QueryEntry
from windtunnel.params.entry import Budget


def preflight(where: str, entry: QueryEntry, budget: Budget, classifier: Classifier, dataset: Dataset) -> None:
    """Raise UserError or IncompatibleError, in one line, for an attack that cannot run or would mean nothing."""
    algorithm = find_algorithm(entry.library, entry.algorithm, where, "queries")
    if library_row(entry) is not None:
        attack_preflight(where, as_attack(entry), budget, classifier, dataset)
        if entry.max_queries == 1:
            raise UserError(f"{where}.max_queries: the first query is the check of the clean image; allow at least 2")
        return
    classifier.require(algorithm, where)
    check_data(where, f"{algorithm.name} changes pixels", dataset)
    search = search_of(where, entry, tuple(dataset.inputs.shape[1:]))
    region_of(where, entry, search)
    if entry.max_queries is not None and entry.max_queries < 1 + search.width:
        raise UserError(
            f"{where}.max_queries: {entry.max_queries} does not last for one round: the check of the clean image and "
            f"{search.width} queries; allow at least {1 + search.width}"
        )
    check_chosen_targets(where, entry.target_classes, entry.samples, dataset)
