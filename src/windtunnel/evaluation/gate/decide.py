"""The gate: do the numbers of a run meet the conditions of `gate`, alone and beside the champion's?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from windtunnel.core.contracts import Json
from windtunnel.core.errors import nearest
from windtunnel.core.gate import Condition, Decision, GateResult
from windtunnel.core.outcomes import Record
from windtunnel.params.results import Gate


def flatten(metrics: Mapping[str, Json], prefix: str = "") -> dict[str, float]:
    """Nested metrics as `group/name`: the names under which the gate, MLflow and `compare` know them."""
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}{key}"] = float(value)
    return flat


def decide(
    gate: Gate,
    metrics: Mapping[str, Json],
    challenger: Record,
    champion: Record | None = None,
    hard_failures: tuple[str, ...] = (),
) -> GateResult:
    """Judge `challenger`. A hard failure comes first: numbers that are not sound are not compared with anything.

    Without a champion the conditions on the regression hold, and say so: the first model has nobody to lose against.
    """
    conditions = [*_evidence(gate, len(challenger.samples), hard_failures), *_floors(gate, flatten(metrics))]
    if gate.no_hard_failures and hard_failures:
        return GateResult(Decision.UNSOUND, tuple(conditions), hard_failures)
    conditions += [
        _against_champion(gate, name, margin, challenger, champion) for name, margin in gate.maximum_regression.items()
    ]
    decision = Decision.PASSED if all(c.holds for c in conditions) else Decision.FAILED
    return GateResult(decision, tuple(conditions), hard_failures, champion.origin if champion else None)


def regression_mismatch(gate: Gate, challenger: Record, champion: Record) -> list[str]:
    """The metrics of `maximum_regression` on which the two cannot be paired: another protocol or other samples."""
    return [name for name in gate.maximum_regression if _refusal(name, challenger, champion)]


def _evidence(gate: Gate, n: int, hard_failures: tuple[str, ...]) -> Iterator[Condition]:
    enough = n >= gate.minimum_samples
    why = "" if enough else f"{n} samples are too few"
    yield Condition("samples", float(n), float(gate.minimum_samples), None, enough, reason=why)
    if gate.no_hard_failures:
        why = "" if not hard_failures else "the numbers must not be believed"
        failures = float(len(hard_failures))
        yield Condition("hard failures", failures, 0.0, None, not hard_failures, "at most", why)


def _floors(gate: Gate, flat: Mapping[str, float]) -> Iterator[Condition]:
    for name, threshold in gate.minimum.items():
        value, low, high = (flat.get(f"{name}{end}") for end in ("", "_ci_low", "_ci_high"))
        interval = (low, high) if low is not None and high is not None else None
        if value is None:
            near = nearest(name, flat)
            why = "this run has no such metric" + (f"; did you mean {near}?" if near else "")
            yield Condition(name, None, threshold, None, False, reason=why)
        else:
            holds = value >= threshold
            why = "" if holds else f"{threshold - value:.4g} below the floor"
            yield Condition(name, value, threshold, interval, holds, reason=why)


def _against_champion(gate: Gate, name: str, margin: float, challenger: Record, champion: Record | None) -> Condition:
    # scipy takes a second to import; most who read this module's decisions need none of it.
    from windtunnel.evaluation.gate.non_inferiority import samples_needed
    from windtunnel.evaluation.gate.paired import compared

    title, alpha = f"{name} vs champion", gate.non_inferiority.alpha
    bound = "lower end above"
    if champion is None:
        return Condition(title, None, -margin, None, True, bound, "no champion to compare with")
    refusal = _refusal(name, challenger, champion)
    if refusal:
        return Condition(title, None, -margin, None, False, bound, refusal)
    found = compared(champion.outcomes[name], challenger.outcomes[name], alpha, gate.non_inferiority.method)
    low, high = found.interval
    holds = low > -margin
    why = f"{found.words}: a loss of {-low:.3g} cannot be ruled out, {margin:.3g} is allowed"
    if not holds and found.n < (needed := samples_needed(margin, alpha)):
        why += f"; even equal outcomes need {needed} samples to show that"
    return Condition(title, found.difference, -margin, (low, high), holds, bound, found.words if holds else why)


def _refusal(name: str, challenger: Record, champion: Record) -> str:
    """Why the two must not be compared on a metric; empty where they may be."""
    mine, theirs = challenger.outcomes.get(name), champion.outcomes.get(name)
    if mine is None:
        return "this run has no outcomes under this metric"
    if theirs is None:
        return "the champion was never assessed on it: windtunnel champion --reassess"
    if mine.protocol != theirs.protocol or challenger.samples != champion.samples:
        return (
            "the champion was assessed under another protocol (samples, budget or settings), which is no comparison: "
            "windtunnel champion --reassess"
        )
    if not any(one and two for one, two in zip(mine.assessed, theirs.assessed, strict=True)):
        return "no sample was assessed under both"
    return ""
