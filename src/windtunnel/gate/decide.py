"""The gate: do the numbers of a run meet the conditions of `gate`?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.params.outcome import Gate


class Decision(StrEnum):
    """What the gate says of a model."""

    PROMOTED = "promoted"
    NOT_PROMOTED = "not_promoted"
    NOT_SOUND = "evaluation_not_sound"


EXIT_CODE = {Decision.PROMOTED: 0, Decision.NOT_PROMOTED: 10, Decision.NOT_SOUND: 20}
INFRASTRUCTURE = 30


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: what was asked, what was found, whether it holds."""

    name: str
    value: float | None
    threshold: float
    interval: tuple[float, float] | None
    holds: bool


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
    gate: Gate, metrics: Mapping[str, Json], n_samples: int, hard_failures: list[str]
) -> tuple[Decision, list[Condition]]:
    """(the decision, every condition). A hard failure comes first: numbers that are not sound are not compared.

    Raises UserError for a metric that the run does not have, with the nearest one.
    """
    flat = flatten(metrics)
    conditions = [
        Condition("samples", float(n_samples), float(gate.minimum_samples), None, n_samples >= gate.minimum_samples)
    ]
    if gate.no_hard_failures:
        conditions.append(Condition("hard failures", float(len(hard_failures)), 0.0, None, not hard_failures))
    for name, threshold in gate.minimum.items():
        if name not in flat:
            raise UserError(unknown_word(f"gate.minimum: {name}", name, sorted(flat), what="a metric of this run"))
        low, high = flat.get(f"{name}_ci_low"), flat.get(f"{name}_ci_high")
        interval = (low, high) if low is not None and high is not None else None
        conditions.append(Condition(name, flat[name], threshold, interval, flat[name] >= threshold))
    if gate.no_hard_failures and hard_failures:
        return Decision.NOT_SOUND, conditions
    return (Decision.PROMOTED if all(c.holds for c in conditions) else Decision.NOT_PROMOTED), conditions


def gate_json(decision: Decision, conditions: list[Condition], hard_failures: list[str]) -> dict[str, Json]:
    """The content of gate.json."""
    rows: list[Json] = [{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(c).items()} for c in conditions]
    return {
        "decision": decision.value,
        "exit_code": EXIT_CODE[decision],
        "conditions": rows,
        "hard_failures": list(hard_failures),
    }
