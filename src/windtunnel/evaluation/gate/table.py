"""gate.json for readers: the rows of a table, and the table as Markdown for a pull request or a run's summary."""

from windtunnel.core.markdown import escape
from windtunnel.records.gate import Condition, ConditionStatus, Decision, GateResult

COLUMNS = ("condition", "of", "value", "threshold", "interval", "result", "why")
SIGN = {"at least": "≥", "at most": "≤", "lower end above": "low end >"}
_WORDS = {
    Decision.PASSED: "passed: every condition holds",
    Decision.FAILED: "failed: a condition does not hold",
    Decision.UNSOUND: "unsound: a hard check failed, so the numbers are not valid",
}
NO_CONDITION = "no condition is set"
_REFUSED = "unsound: the run has no unbiased estimate of a metric that a condition uses"


def rows(result: GateResult) -> list[tuple[str, ...]]:
    """Return a row of text per condition, in the order of COLUMNS."""
    return [_row(condition) for condition in result.conditions]


def sentence(result: GateResult) -> str:
    """Return the decision in words."""
    if result.is_empty:
        return NO_CONDITION
    if result.decision is Decision.UNSOUND and not result.hard_failures:
        return _REFUSED
    applies = any(c.status is not ConditionStatus.NOT_APPLICABLE for c in result.conditions)
    skipped = [c.name for c in result.conditions if c.status is ConditionStatus.NOT_APPLICABLE]
    further = f" that applies (not applicable, no champion: {', '.join(skipped)})" if skipped and applies else ""
    return f"{_WORDS[result.decision]}{further if result.decision is Decision.PASSED else ''}"


def failing(result: GateResult) -> list[str]:
    """Return `condition (region, n): why` of each unmet condition; for an unsound evaluation only its hard failures."""
    if result.hard_failures:
        return [*result.hard_failures]
    unmet = [condition for condition in result.conditions if not condition.holds]
    return [f"{c.name}{f' ({c.basis})' if c.basis else ''}: {c.reason or 'fails'}" for c in unmet]


def markdown(result: GateResult) -> str:
    """Return the whole decision as Markdown."""
    failures = [f"- NOT VALID: {escape(line)}" for line in result.hard_failures]
    lines = [f"**{sentence(result)}**", "", *failures, *([""] if failures else [])]
    if not result.is_empty:
        lines += ["| " + " | ".join(COLUMNS) + " |", "| --- | --- | ---: | ---: | ---: | --- | --- |"]
        lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows(result)]
    lines += ["", escape(line)] if (line := champion_line(result)) else []
    return "\n".join(lines) + "\n"


def champion_line(result: GateResult) -> str:
    """Name the champion when the gate ran, which may be another one by now; empty where nobody was, or nothing was compared."""
    champion = result.champion
    if not champion:
        return ""
    again = ", reassessed for this comparison" if champion.reassessed else ""
    return f"Champion when the gate ran: {champion.model} version {champion.version}{again}"


def _row(condition: Condition) -> tuple[str, ...]:
    value, interval = condition.value, condition.interval
    return (
        condition.name,
        condition.basis,
        "-" if value is None else f"{value:.4g}",
        f"{SIGN[condition.bound]} {condition.threshold:.4g}",
        f"[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "",
        str(condition.status),
        condition.reason,
    )
