"""Matrix games of a few choices: the weights of one player whose worst case costs least.

Of whatever choice i the other takes, weights w cost sum_j w_j d[i, j].
"""

from __future__ import annotations

import torch
from torch import Tensor

_PIVOTS, _GAIN = 20, 1e-9  # of the simplex method: the most, and the least that one must gain


def value_of(d: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """max_i sum_j weights_j d[i, j] over the i that are not `out`; of d (..., K, K), weights and bool out (..., K)."""
    return (d @ weights[..., None])[..., 0].masked_fill(out, -torch.inf).amax(-1)


def best_weights(d: Tensor, out: Tensor) -> Tensor:
    """Weights (..., K), the best of each game; those of `out` are 0, which not all are.

    By the simplex method, all games at once: with a = d + 2 > 0 in units of the largest difference, the y >= 0 of the largest sum
    for which a y <= 1 are the weights divided by the value. Whatever it ends with is made weights of, whose value is their own.
    """
    k, games = d.shape[-1], d.reshape(-1, *d.shape[-2:])
    none = out.reshape(-1, k)
    a = (games / games.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30) + 2).masked_fill(none[..., None], 0.0)
    # Columns: y, what is left of each 1, and the ones; the last row is what the sum gains with each.
    table = d.new_zeros(len(a), k + 1, 2 * k + 1)
    table[:, :k, :k], table[:, :k, k : 2 * k] = a, torch.eye(k).to(d)
    table[:, :k, -1], table[:, k, :k] = 1.0, 1.0
    basis = torch.arange(k, 2 * k, device=d.device).repeat(len(a), 1)
    never, every = torch.cat([none, torch.zeros_like(none)], 1), torch.arange(len(a), device=d.device)
    for _ in range(_PIVOTS):
        gain, enters = table[every, k, :-1].masked_fill(never[every], -torch.inf).max(1)
        every, enters = every[gain > _GAIN], enters[gain > _GAIN]
        if not len(every):
            break
        entries = table[every]
        column = entries.gather(2, enters[:, None, None].expand(-1, k + 1, 1))[..., 0]
        ratio = torch.where(column[:, :k] > _GAIN, entries[:, :k, -1] / column[:, :k], torch.inf)
        leaves = ratio.argmin(1)
        row = entries.gather(1, leaves[:, None, None].expand(-1, 1, 2 * k + 1))
        row = row / column.gather(1, leaves[:, None])[..., None]
        column.scatter_add_(1, leaves[:, None], torch.full_like(leaves[:, None], -1, dtype=d.dtype))
        table[every] = entries - column[..., None] * row
        basis[every, leaves] = enters
    y = d.new_zeros(len(a), 2 * k).scatter_(1, basis, table[:, :k, -1])[:, :k]
    return made_weights((y / y.sum(1, keepdim=True)).view(out.shape), out)[0]


def made_weights(entries: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers (..., K) as weights, 0 where `out`; whether something was left of them)."""
    entries = entries.nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).masked_fill(out, 0.0)
    total = entries.sum(-1)
    return entries / total.clamp(min=1e-30)[..., None], total > 1e-3
