"""Decide the conditions of the gate from samples that arrive batch by batch, as early as the evidence allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.core.errors import UserError
from windtunnel.core.statistics import BettingSequence
from windtunnel.params.results import Gate
from windtunnel.records.gate import HELD, NOT_ASSESSED, Decision, OutcomeRecord, Outcomes, Shares

LEVEL = 0.05


@dataclass
class SequentialCondition:
    """One condition on a mean: at least `threshold`.

    Attributes:
        name: metric, `worst_case/accuracy`.
        threshold: smallest mean allowed; of a difference to the champion minus its margin.
        span: smallest and largest value of a sample, (0, 1) or (-1, 1).
        passing, failing: the same values at level 5 % and at 5 % over the number of conditions.
    """

    name: str
    threshold: float
    span: tuple[float, float]
    passing: BettingSequence
    failing: BettingSequence

    @property
    def title(self) -> str:
        """The name as the gate's table has it."""
        return self.name if self.span[0] == 0 else f"{self.name} vs champion"

    @property
    def value(self) -> float:
        """The mean so far."""
        return self._unscaled(self.passing.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence sequence now."""
        return self._unscaled(self.passing.lower), self._unscaled(self.passing.upper)

    @property
    def holds(self) -> bool | None:
        """True or False where the sequences show it; else None."""
        if self._unscaled(self.passing.lower) >= self.threshold:
            return True
        return False if self._unscaled(self.failing.upper) < self.threshold else None

    def add(self, values: Sequence[float]) -> None:
        """Update both sequences with the values of further samples."""
        low, high = self.span
        scaled = [(value - low) / (high - low) for value in values]
        self.passing.add(scaled)
        self.failing.add(scaled)

    def _unscaled(self, mean: float) -> float:
        low, high = self.span
        return low + mean * (high - low)


@dataclass
class SequentialGate:
    """The conditions of `gate` on means of per-sample outcomes.

    Passed: the 95 % sequence of every condition clears its threshold, on `minimum_samples` samples at least. Failed: one of
    m conditions misses it at level 5 % / m.
    """

    gate: Gate
    champion: OutcomeRecord | None = None
    conditions: list[SequentialCondition] = field(default_factory=list)

    def __post_init__(self) -> None:
        """List the conditions. Raises UserError where there is none."""
        requested = [(name, floor, (0.0, 1.0)) for name, floor in self.gate.minimum.items()]
        if self.champion is not None:
            requested += [(name, -margin, (-1.0, 1.0)) for name, margin in self.gate.maximum_regression.items()]
        if not requested:
            raise UserError("gate --sequential: no condition is set; add gate.minimum, e.g. worst_case/accuracy: 0.3")
        for name, threshold, span in requested:
            sequences = BettingSequence(LEVEL), BettingSequence(LEVEL / len(requested))
            self.conditions.append(SequentialCondition(name, threshold, span, *sequences))

    def add(self, record: OutcomeRecord) -> Decision | None:
        """Continue by the outcomes of a batch; return the decision where there is one."""
        for condition in self.conditions:
            condition.add(self._values(condition, record))
        if any(condition.holds is False for condition in self.conditions):
            return Decision.FAILED
        enough = all(c.passing.n >= self.gate.minimum_samples for c in self.conditions)
        return Decision.PASSED if enough and all(c.holds for c in self.conditions) else None

    def _values(self, condition: SequentialCondition, record: OutcomeRecord) -> list[float]:
        """Return the outcomes of the samples of a batch, or their differences to the champion's."""
        name, key = condition.name, "minimum" if condition.span[0] == 0 else "maximum_regression"
        if (row := record.outcomes.get(name)) is None:
            raise UserError(
                f"gate.{key}.{name}: is no mean of per-sample outcomes, which --sequential needs; there are "
                f"{', '.join(record.outcomes)}"
            )
        values = _by_sample(record.samples, row)
        if condition.span[0] == 0:
            return list(values.values())
        assert self.champion is not None
        before = self.champion.outcomes.get(name)
        if before is None or before.protocol != row.protocol:
            raise UserError(
                f"gate.maximum_regression.{name}: the champion was assessed under another protocol (samples, budget or "
                f"settings): windtunnel champion --reassess"
            )
        champion = _by_sample(self.champion.samples, before)
        return [value - champion[sample] for sample, value in values.items() if sample in champion]


def _by_sample(samples: Sequence[str], row: Outcomes | Shares) -> Mapping[str, float]:
    """Return the value of each assessed sample, in [0, 1]."""
    if isinstance(row, Shares):
        return {name: right / row.images for name, right in zip(samples, row.right, strict=True) if right is not None}
    return {name: float(c == HELD) for name, c in zip(samples, row.held, strict=True) if c != NOT_ASSESSED}
