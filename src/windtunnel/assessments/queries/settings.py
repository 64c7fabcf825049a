"""Resolve an entry of `queries` into its search and the region of its successes."""

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.assessments.attacks.settings import check_epsilon
from windtunnel.assessments.catalogue import params_as
from windtunnel.assessments.queries.algorithms import EpsGreedy, EpsGreedyParams, EvoBA, EvoBAParams, SimBA, SimBAParams
from windtunnel.assessments.queries.search import SearchAlgorithm
from windtunnel.assessments.queries.table import LIBRARY, OWN
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.errors import UserError
from windtunnel.params.attacks import AttackEntry, QueryEntry
from windtunnel.params.entry import Block

_PARAMS: dict[str, type[Block]] = {"EvoBA": EvoBAParams, "EpsGreedy": EpsGreedyParams, "SimBA": SimBAParams}


def params_of(where: str, entry: QueryEntry) -> Block:
    """Return the parameters of one of our algorithms. Raises UserError, in one line, for an unknown one or a value that is off."""
    return params_as(_PARAMS[entry.algorithm], entry, where)


def search_of(where: str, entry: QueryEntry, shape: tuple[int, ...]) -> SearchAlgorithm:
    """Return the search of one of our algorithms on images of `shape` (C, H, W). Raises UserError as `params_of`."""
    params = params_of(where, entry)
    if isinstance(params, EvoBAParams):
        return EvoBA(params)
    if isinstance(params, EpsGreedyParams):
        return EpsGreedy(params, params.pixel_groups(shape[1], shape[2], where))
    assert isinstance(params, SimBAParams)
    return SimBA(params, shape)


def limit_of(where: str, entry: QueryEntry, shape: tuple[int, ...], attacked: int) -> int | None:
    """Return how many queries each of `attacked` images of `shape` may take, the check of the clean image included; None for any.

    The smaller of `max_queries` and an equal share of `total_queries`, which counts what the attack itself asks.
    Raises UserError where the share does not last for one round.
    """
    if entry.total_queries is None:
        return entry.max_queries
    width = 1 if library_row(entry) is not None else search_of(where, entry, shape).width
    share = entry.total_queries // max(1, attacked)
    if share < width:
        raise UserError(
            f"{where}.total_queries: {entry.total_queries} for {attacked} images is {share} each, and a round takes {width}; "
            f"allow at least {width * attacked}, or assess fewer samples ({where}.samples.n)"
        )
    return min(1 + share, entry.max_queries or 1 + share)


def region_of(where: str, entry: QueryEntry, search: SearchAlgorithm) -> PerturbationBudget:
    """Return the region of one of our algorithms: the entry's budget, or no bound without one.

    The global budget is not asked: these algorithms are bounded by their queries, and change few values by any amount.
    Raises UserError for a budget that cannot be.
    """
    parameters, row = entry.budget, OWN[entry.algorithm]
    params = params_of(where, entry)
    for key, value in (("steps", parameters.steps), ("step_size", parameters.step_size)):
        if value is not None:
            name = {"steps": "generations" if isinstance(params, EvoBAParams) else "steps"}.get(key, key)
            raise UserError(f"{where}.budget.{key}: {entry.algorithm} takes it as {where}.params.{name}, if at all")
    norm = parameters.norm or row.norm
    assert norm is not None
    step = params.step_size if isinstance(params, SimBAParams) else None
    region = PerturbationBudget(norm, parameters.epsilon, step, search.steps)
    check_epsilon(where, region)
    return region


def library_row(entry: QueryEntry) -> AttackRow | None:
    """Return the row of the attacks table for a library's attack, None for one of our algorithms."""
    return LIBRARY.get((entry.library, entry.algorithm))


def as_attack(entry: QueryEntry) -> AttackEntry:
    """Return the entry as an entry of `attacks`, to reuse its checks and settings."""
    settings = {
        key: getattr(entry, key) for key in ("library", "algorithm", "params", "budget", "samples", "target_classes")
    }
    return AttackEntry(**settings)
