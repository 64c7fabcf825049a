"""gate.json for readers: the rows of a table, and the table as Markdown for a pull request or a run's summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from windtunnel.core.contracts import Json

COLUMNS = ("condition", "value", "threshold", "interval", "verdict", "why")
SIGN = {"at least": "≥", "at most": "≤", "lower end above": "low end >"}
_WORDS = {
    "passed": "passed: every condition holds",
    "failed": "failed: a condition does not hold",
    "unsound": "unsound: a hard failure, so that the numbers say nothing about the model",
}


def rows(verdict: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """A row of text per condition, in the order of COLUMNS. Raises KeyError where the verdict is damaged."""
    return [_row(condition) for condition in cast(list[Mapping[str, Json]], verdict["conditions"])]


def sentence(verdict: Mapping[str, Json]) -> str:
    """The decision in words."""
    decision = str(verdict["decision"])
    return _WORDS.get(decision, decision)


def failing(verdict: Mapping[str, Json]) -> list[str]:
    """`condition: why` of each condition that does not hold; of an unsound evaluation its hard failures alone."""
    if hard := cast(list[str], verdict.get("hard_failures") or []):
        return [str(line) for line in hard]
    failed = [c for c in cast(list[Mapping[str, Json]], verdict["conditions"]) if not c["holds"]]
    return [f"{c['name']}: {c.get('reason') or 'fails'}" for c in failed]


def markdown(verdict: Mapping[str, Json]) -> str:
    """The whole verdict as Markdown."""
    failures = [f"- NOT VALID: {line}" for line in cast(list[str], verdict["hard_failures"])]
    lines = [f"**{sentence(verdict)}**", "", *failures, *([""] if failures else [])]
    lines += ["| " + " | ".join(COLUMNS) + " |", "| --- | ---: | ---: | ---: | --- | --- |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(verdict)]
    lines += ["", line] if (line := champion_line(verdict)) else []
    return "\n".join(lines) + "\n"


def champion_line(verdict: Mapping[str, Json]) -> str:
    """Who was champion when the gate ran, which may be another one by now; empty where nobody was, or nothing was compared."""
    champion = verdict.get("champion")
    if not isinstance(champion, Mapping):
        return ""
    again = ", reassessed for this comparison" if champion.get("reassessed") else ""
    return f"Champion when the gate ran: {champion['model']} version {champion['version']}{again}"


def _row(condition: Mapping[str, Json]) -> tuple[str, ...]:
    value, interval = condition["value"], cast(list[float] | None, condition["interval"])
    return (
        str(condition["name"]),
        "-" if value is None else f"{float(str(value)):.4g}",
        f"{SIGN[str(condition['bound'])]} {float(str(condition['threshold'])):.4g}",
        f"[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "",
        "holds" if condition["holds"] else "fails",
        str(condition["reason"]),
    )
