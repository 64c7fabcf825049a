"""The epsilon grid of a sweep."""

from collections.abc import Sequence

import numpy as np

from windtunnel.core.errors import UserError
from windtunnel.params.sweeps import EpsilonRange


def epsilon_grid(epsilons: Sequence[float] | EpsilonRange, where: str) -> tuple[list[float], bool]:
    """Return (the grid, sorted, with zero; whether zero had to be added).

    Raises UserError for an empty grid, a negative or a repeated epsilon.
    """
    if isinstance(epsilons, EpsilonRange):
        space = np.linspace if epsilons.spacing == "linear" else np.geomspace
        values = [float(v) for v in space(epsilons.start, epsilons.stop, epsilons.steps)]
    else:
        values = [float(v) for v in epsilons]
    if not values:
        raise UserError(f"{where}.epsilons: is empty; give at least one epsilon above 0, for example [0, 2/255, 4/255]")
    for value in values:
        if value < 0:
            raise UserError(f"{where}.epsilons: {value:g} is negative; an epsilon is 0 or larger")
    repeated = sorted({v for v in values if values.count(v) > 1})
    if repeated:
        raise UserError(f"{where}.epsilons: {', '.join(f'{v:g}' for v in repeated)} is repeated; each epsilon once")
    if max(values) == 0:
        raise UserError(f"{where}.epsilons: holds only 0, the clean baseline; add an epsilon above 0")
    added = 0.0 not in values
    return sorted([*values, 0.0] if added else values), added


def median_index(grid: Sequence[float]) -> int:
    """Index of the median epsilon: n // 2, the upper median, as in neural-api's report."""
    return len(grid) // 2
