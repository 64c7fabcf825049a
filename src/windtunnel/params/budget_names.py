"""Names of the budgets of a run, under which metrics speak of them: `worst_case/<name>/accuracy`."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.core.contracts import Norm
from windtunnel.core.transformations import transformation_of
from windtunnel.params.load import entries
from windtunnel.params.schema import Params


def budget_names(params: Params) -> Mapping[tuple[Norm, float], str]:
    """Return the name of each budget that has one, by (norm, epsilon).

    `budgets` gives the names; a transformation that only an entry states is called by its kinds and ranges, as `rotation-10`.
    """
    names = {(budget.norm, budget.epsilon): name for name, budget in reversed(params.budgets.items())}
    for _, _, entry in entries(params):
        budget = entry.budget.over(params.budget)
        assert budget.epsilon is not None
        if (transformation := transformation_of(budget.norm)) and (budget.norm, budget.epsilon) not in names:
            ranges = "-".join(f"{kind}-{size:g}" for kind, size in transformation.ranges)
            names[budget.norm, budget.epsilon] = ranges
    return names
