"""Should these numbers be believed? The checks by group, and the gate's verdict."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.evaluation.gate.table import SIGN
from windtunnel.evaluation.sanity.findings import counts, in_words
from windtunnel.reporting.report.model import Block, Finding, Section, Severity, Table, Text
from windtunnel.reporting.report.words import Row, listed, number, rows_in, short

SANITY = "Should I believe these numbers?"
_ORDER = ("fail", "warn", "not_run", "pass", "not_applicable")
_MARK = {"fail": "✗ ", "warn": "! ", "pass": "✓ "}
_GROUPS = {
    "A": "A. Before the run: model and input",
    "B": "B. After each attack",
    "C": "C. Gradient masking and obfuscation",
    "D": "D. Strength and convergence of the attacks",
    "E": "E. Attacks, certificates and statistics against each other",
    "F": "F. Statistics and reporting",
    "G": "G. Provenance",
}
_DECISIONS: dict[str, tuple[Severity, str]] = {
    "passed": ("info", "The model meets every condition of the gate."),
    "failed": ("warning", "The model does not meet every condition of the gate."),
    "unsound": ("invalid", "The evaluation is not sound, so the gate says nothing about the model."),
}


def is_flagged(row: Row) -> bool:
    """Whether a check says that a number may mislead; what only informs does not."""
    return row["status"] == "fail" or (row["status"] == "warn" and row["severity"] != "INFO")


def warnings_of(checks: tuple[Row, ...] | None) -> list[str]:
    """A line per check that flagged: what was seen, and what to do. Not the hard ones, which are failures of the summary."""
    return [
        f"{row['id']} {row['title']}: {_sentence(row.get('reason') or 'flagged')} {row.get('remedy') or ''}".strip()
        for row in checks or ()
        if is_flagged(row) and not (row["status"] == "fail" and row["severity"] == "HARD")
    ]


def sanity_line(checks: tuple[Row, ...] | None) -> Finding:
    """All checks in one line, for page one."""
    if checks is None:
        return Finding("warning", "Sanity: no checks ran, so nothing vouches for the evaluation itself.")
    flagged = [row for row in checks if is_flagged(row)]
    named = ", ".join(f"{row['id']} {str(row['title'])[:1].lower()}{str(row['title'])[1:]}" for row in flagged)
    hard = any(row["severity"] == "HARD" for row in flagged)
    severity: Severity = "invalid" if hard else "warning" if flagged else "info"
    return Finding(severity, f"Sanity: {in_words(counts(checks))}{f'; flagged: {named}' if named else ''}.")


def sanity_section(checks: tuple[Row, ...], found_gate: Row | None) -> Section:
    """The checks that flagged, with what was seen and what to do; what was not run; the others in the appendix."""
    blocks: list[Block] = [
        Text(
            f"{len(checks)} checks: {in_words(counts(checks))}. Passing them is necessary, not sufficient: a number that passes "
            "every check may still be too good, and a check that was not run says nothing."
        )
    ]
    flagged = tuple(row for row in checks if row["status"] in {"fail", "warn"})
    blocks.append(Table("What was flagged", ("id", "check", "result", "what was seen", "what to do", "concerns"), tuple(
        (str(row["id"]), str(row["title"]), _result(row), short(row.get("reason"), 300), short(row.get("remedy"), 300), _concerns(row))
        for row in flagged)))  # fmt: skip
    if left := [row for row in checks if row["status"] == "not_run"]:
        reasons: dict[str, list[str]] = {}
        for row in left:
            reasons.setdefault(str(row.get("reason") or ""), []).append(str(row["id"]))
        blocks.append(
            Table("What was not run", ("checks", "why"), tuple((", ".join(ids), why) for why, ids in reasons.items()))
        )
    children = [gate_section(found_gate)] if found_gate is not None else []
    return Section(SANITY, tuple(blocks), tuple(children))


def checks_appendix(checks: tuple[Row, ...]) -> Section:
    """Every check, by group: value, threshold, and the source of the check."""
    return Section("Every sanity check", tuple(_tables(checks)), detail=True)


def _concerns(row: Row) -> str:
    samples, named = listed(row, "samples"), listed(row, "assessments")
    parts = [", ".join(map(str, named))] if named else []
    if samples:
        more = f" and {len(samples) - 3} more" if len(samples) > 3 else ""
        parts.append(f"samples {', '.join(map(str, samples[:3]))}{more}")
    return "; ".join(parts) or "the run"


def _sentence(value: object) -> str:
    text = str(value)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _tables(checks: tuple[Row, ...]) -> Iterator[Table]:
    groups = sorted({str(row["id"])[:1] for row in checks})
    header = ("id", "check", "severity", "result", "value", "threshold", "n", "source")
    for group in groups:
        mine = [row for row in checks if str(row["id"])[:1] == group]
        mine.sort(key=lambda row: _ORDER.index(str(row["status"])) if row["status"] in _ORDER else 0)
        rows = tuple(
            (
                str(row["id"]),
                str(row["title"]),
                str(row["severity"]),
                _result(row),
                short(row.get("value")),
                f"{SIGN.get(str(row.get('bound')), '')} {short(row.get('threshold'))}".strip(),
                short(row.get("n")),
                short(row.get("source"), 60),
            )
            for row in mine
        )
        yield Table(_GROUPS.get(group, f"Group {group}"), header, rows)


def _result(row: Row) -> str:
    status = str(row["status"])
    if status == "warn" and row["severity"] == "INFO":
        return "note"
    return _MARK.get(status, "") + _words(status)


def _words(status: str) -> str:
    return status.replace("_", " ")


def gate_line(gate: Row | None) -> Finding:
    """The verdict of the gate in one line, for page one."""
    if gate is None:
        return Finding("warning", "Gate: not decided yet.")
    severity, words = _DECISIONS.get(str(gate["decision"]), ("warning", _words(str(gate["decision"]))))
    conditions = rows_in(gate, "conditions")
    failed = [str(row.get("name")) for row in conditions if not row.get("holds")]
    if failed:
        seen = f" Not met: {', '.join(failed)}."
    else:
        seen = f" {len(conditions)} conditions hold." if conditions else " It has no conditions."
    return Finding(severity, f"Gate: {_words(str(gate['decision']))}. {words}{seen}")


def gate_section(gate: Row) -> Section:
    """The decision in words, and every condition."""
    decision = str(gate["decision"])
    severity, words = _DECISIONS.get(decision, ("warning", _words(decision)))
    blocks: list[Block] = [Finding(severity, words)]
    conditions = rows_in(gate, "conditions")
    if conditions:
        with_reason = any(row.get("reason") for row in conditions)
        header = ("condition", "value", "interval", "threshold", "verdict", *(["reason"] if with_reason else []))
        rows = tuple(
            (
                str(row.get("name")),
                short(row.get("value")),
                _interval(row),
                f"{SIGN.get(str(row.get('bound')), '')} {short(row.get('threshold'))}".strip(),
                "holds" if row.get("holds") else "does not hold",
                *([short(row.get("reason"), 200)] if with_reason else []),
            )
            for row in conditions
        )
        blocks.append(Table("The conditions of the gate", header, rows))
    blocks.append(Text(f"windtunnel gate    # exits with {short(gate.get('exit_code'))}", code=True))
    return Section("The gate", tuple(blocks))


def _interval(row: Row) -> str:
    value = row.get("interval")
    if isinstance(value, list) and len(value) == 2:
        return "[" + ", ".join(f"{number({'v': v}, 'v'):.4g}" for v in value) + "]"
    return ""
