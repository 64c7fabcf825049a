"""`windtunnel check --minutes --width`: how many samples of each entry a given time is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from windtunnel.core.errors import UserError
from windtunnel.core.statistics import binomial_interval
from windtunnel.operations.estimate import Estimate


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """Proposed samples of one entry.

    Attributes:
        name: `family.entry`.
        samples: how many, from 1.
        width: of the 95 % Wilson interval of a rate of one half, the widest there is; in [0, 1].
        seconds: for these samples, from the measured cost.

    """

    name: str
    samples: int
    width: float
    seconds: float


def widest_interval(n: int) -> float:
    """Return the width of the 95 % Wilson interval of a rate of one half over n samples; in [0, 1]."""
    low, high = binomial_interval(n / 2, n)
    return high - low


def samples_for(width: float) -> int:
    """Return the fewest samples at which no 95 % Wilson interval of a rate is wider than `width`, in (0, 1)."""
    low, high = 1, ceil(4 / width**2) + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if widest_interval(middle) <= width else (middle + 1, high)
    return low


def plan(
    rows: Sequence[Estimate], available: int, seconds: float | None, width: float | None, surcharge: float = 0.0
) -> list[PlannedEntry]:
    """Propose samples for each entry that was measured.

    Without `seconds` every entry gets what `width` needs. Else the time is shared so that the sum of the variances of the
    rates is smallest: in proportion to 1 / sqrt(seconds of a sample), between 1 and what `width` needs.

    Args:
        rows: measured cost of each entry; those that were not measured are left out.
        available: samples of the data set.
        seconds: for all entries together; None for no limit.
        width: wanted width of the widest interval, in (0, 1); None for as narrow as the time allows.
        surcharge: what the witness of the sanity checks adds to each second of attacks.

    Returns:
        The proposals in the order of `rows`.

    Raises:
        UserError: one sample of each entry takes longer than `seconds`.

    Source: optimal allocation of Neyman 1934, doi:10.2307/2342192.

    """
    measured = [row for row in rows if not row.skipped]
    costs = {row.name: row.seconds / row.samples * (1 + surcharge * row.is_attack) for row in measured}
    most = min(available, samples_for(width)) if width else available
    counts = dict.fromkeys(costs, most)
    if seconds is not None:
        if sum(costs.values()) > seconds:
            raise UserError(
                f"--minutes {seconds / 60:g}: one sample of each entry takes about {sum(costs.values()) / 60:.1f} minutes; "
                f"remove an entry or allow more"
            )
        low, high = 0.0, (most + 1) * max(1.0, *(cost**0.5 for cost in costs.values()))
        for _ in range(60):  # bisection of the common factor of the shares
            factor = (low + high) / 2
            shares = {name: max(1, min(most, int(factor / max(cost, 1e-12) ** 0.5))) for name, cost in costs.items()}
            if sum(costs[name] * n for name, n in shares.items()) <= seconds:
                low, counts = factor, shares
            else:
                high = factor
    return [PlannedEntry(name, n, widest_interval(n), costs[name] * n) for name, n in counts.items()]
