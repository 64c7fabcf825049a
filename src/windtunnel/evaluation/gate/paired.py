"""Two models on the same samples under one metric: how far apart they are, and in words what was compared."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.evaluation.gate.mean_difference import mean_interval
from windtunnel.evaluation.gate.non_inferiority import Method, Paired, paired_interval
from windtunnel.records.outcomes import HELD, LOST, Outcomes, Shares


@dataclass(frozen=True, slots=True)
class Compared:
    """The second model against the first on `n` samples.

    difference: of the metric, second minus first. interval: its lower end is a one-sided bound at level alpha.
    """

    n: int
    difference: float
    interval: tuple[float, float]
    words: str


def compared(first: Outcomes | Shares, second: Outcomes | Shares, alpha: float, method: Method) -> Compared:
    """Compare two rows of one protocol, on the samples that both were assessed on.

    `method` is of yes-or-no outcomes; a mean over images has the interval of `mean_interval`, samples being what is drawn.
    Raises ValueError for no common sample.
    """
    if isinstance(first, Shares) and isinstance(second, Shares):
        return _shares(first, second, alpha)
    assert isinstance(first, Outcomes)
    assert isinstance(second, Outcomes)
    pairs = [*zip(first.held, second.held, strict=True)]
    table = Paired(
        both=pairs.count((HELD, HELD)),
        gained=pairs.count((LOST, HELD)),
        lost=pairs.count((HELD, LOST)),
        neither=pairs.count((LOST, LOST)),
    )
    description = f"{table.gained} gained, {table.lost} lost of {table.n}"
    return Compared(table.n, table.difference, paired_interval(table, alpha, method), description)


def _shares(first: Shares, second: Shares, alpha: float) -> Compared:
    pairs = zip(first.right, second.right, strict=True)
    gains = [two - before for before, two in pairs if before is not None and two is not None]
    n, better, worse = len(gains), sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    differences = [gain / first.images for gain in gains]
    description = f"mean over {first.images} images of each sample: better on {better}, worse on {worse} of {n}"
    return Compared(n, sum(gains) / first.images / n, mean_interval(differences, alpha), description)
