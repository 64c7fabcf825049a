"""Subdomains in which no unit is left to split: there the network is affine, and a linear programme decides.

The programme is solved by HiGHS (scipy), but its word counts for nothing by itself: the dual solution becomes the multipliers
beta of one more float64 pass, and the primal one a candidate for a counter-example.
"""

import numpy as np
import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.specs import LinearSpecs
from windtunnel.core.contracts import Norm

_EMPTY = 1e-7  # a violation that HiGHS is sure of
_LARGE = 1e4  # an empty subdomain's multipliers may be scaled up until any goal is reached


def leaf_bound(bounded: Bounded, row: LinearSpecs, goal: float) -> tuple[float, Tensor | None]:
    """Return (the best float64 lower bound of one row without open units, the point (d,) where the programme attains it).

    Only for the box of Linf; for other norms the bound is the row's own, and there is no point. `goal`: what the bound of an
    empty subdomain is to exceed.
    """
    from scipy.optimize import linprog  # half a second, which a sample that the root decides need not spend

    crown_bound = float(bounded.value(row))
    columns = row.signs[0].nonzero().flatten()
    if bounded.region.norm is not Norm.LINF:
        return crown_bound, None
    bare = row.with_multipliers(row.alpha, torch.zeros_like(row.beta))
    cost, _ = _affine(bounded, bare)
    constraints = [_constraint(bounded, bare, int(column)) for column in columns]
    limits = np.stack([t[row.sample[0]].cpu().numpy() for t in (bounded.region.low, bounded.region.high)], 1)
    if not constraints:
        point = bounded.region.minimum(torch.from_numpy(cost)[None].to(row.spec.device), row.sample)[1][0]
        return crown_bound, point
    a, b = np.stack([g for g, _ in constraints]), np.array([-c for _, c in constraints])
    solved = linprog(cost, a, b, bounds=limits, method="highs")
    if solved.status == 0:
        beta = _multipliers(row, columns, solved.ineqlin.marginals)
        errors = np.array([bounded.error(int(column)) for column in columns])
        if errors.any():  # the optimum may lie beyond a jump: a counter-example does not
            inside = linprog(cost, a, b - 2 * errors, bounds=limits, method="highs")
            solved = inside if inside.status == 0 else solved
        return max(crown_bound, float(bounded.value(row.with_multipliers(row.alpha, beta)))), torch.from_numpy(solved.x)
    if solved.status == 2:  # empty: the multipliers of the least violation prove it, scaled up
        wide = np.c_[a, -np.ones(len(a))]
        emptied = linprog(np.r_[0 * cost, 1.0], wide, b, bounds=[*limits, (0, None)], method="highs")
        if emptied.status == 0 and emptied.fun > _EMPTY:
            scale = _LARGE * max(1.0, abs(goal - crown_bound)) / emptied.fun
            beta = _multipliers(row, columns, scale * emptied.ineqlin.marginals)
            return max(crown_bound, float(bounded.value(row.with_multipliers(row.alpha, beta)))), None
    return crown_bound, None


def _multipliers(row: LinearSpecs, columns: Tensor, marginals: np.ndarray) -> Tensor:
    beta = torch.zeros(row.beta.shape, dtype=torch.float64, device=row.spec.device)
    beta[0, columns] = torch.from_numpy(-marginals).clamp(min=0).to(beta)
    return beta


def _affine(bounded: Bounded, row: LinearSpecs) -> tuple[np.ndarray, float]:
    """(gradient (d,), constant) of the row's linear function, all of whose units are linear here."""
    back = bounded.backward(row, bounded.relaxation(row, torch.float64), torch.float64)
    return back.inputs[0].cpu().numpy(), float(back.constant)


def _constraint(bounded: Bounded, row: LinearSpecs, column: int) -> tuple[np.ndarray, float]:
    """(g, c) of the split at `column`: g x + c <= 0 in the subdomain."""
    j = next(j for j, at in enumerate(bounded.slices) if at.start <= column < at.stop)
    unit, below = bounded.units[j][column - bounded.slices[j].start], bounded.below(j)
    spec = torch.zeros(1, bounded.network.layers[j].size, device=row.spec.device)
    spec[0, unit] = -float(row.signs[0, column])
    part = LinearSpecs(j, spec, row.sample, row.signs[:, :below], row.alpha[:, :below], row.beta[:, :below])
    gradient, constant = _affine(bounded, part)
    return gradient, constant - bounded.error(column)
