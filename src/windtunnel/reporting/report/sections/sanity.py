"""Should these numbers be believed? The checks by group, and the gate's verdict."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.evaluation.gate.table import SIGN
from windtunnel.evaluation.sanity.findings import counts, in_words
from windtunnel.reporting.report.model import Block, Finding, Section, Severity, Table, Text
from windtunnel.reporting.report.words import Row, listed, number, rows_in, short

_ORDER = ("fail", "warn", "not_run", "pass", "not_applicable")
_MARK = {"fail": "✗ ", "warn": "! ", "pass": "✓ "}
_GROUPS = {
    "A": "A. Before the run: model and input",
    "B": "B. After each attack",
    "C": "C. Gradient masking and obfuscation",
    "D": "D. Strength and convergence of the attacks",
    "E": "E. Attacks, proofs and statistics against each other",
    "F": "F. Statistics and reporting",
    "G": "G. Provenance",
}
_DECISIONS: dict[str, tuple[Severity, str]] = {
    "passed": ("info", "The model meets every condition of the gate."),
    "failed": ("warning", "The model does not meet every condition of the gate."),
    "unsound": ("invalid", "The evaluation is not sound, so the gate says nothing about the model."),
}


def warnings_of(checks: tuple[Row, ...] | None) -> list[str]:
    """A line per check that flagged. Not the hard ones, which are hard failures of the summary, nor what only informs."""
    return [
        f"Sanity check {row['id']}: {row['title']}. {row.get('remedy') or ''}".strip()
        for row in checks or ()
        if row["severity"] != "INFO"
        and (row["status"] == "warn" or (row["status"] == "fail" and row["severity"] != "HARD"))
    ]


def sanity_section(checks: tuple[Row, ...]) -> Section:
    """Every check, by group, those that flagged first."""
    blocks: list[Block] = [
        Text(
            f"{len(checks)} checks: {in_words(counts(checks))}. Passing them is necessary, not sufficient: a number that passes "
            "every check may still be too good, and a check that was not run says nothing."
        )
    ]
    blocks += _tables(checks)
    return Section("Sanity checks: should these numbers be believed?", tuple(blocks))


def _tables(checks: tuple[Row, ...]) -> Iterator[Table]:
    groups = sorted({str(row["id"])[:1] for row in checks})
    header = ("id", "check", "severity", "result", "value", "threshold", "n", "what to do, or why not", "source")
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
                _advice(row),
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


def _advice(row: Row) -> str:
    flagged = row["status"] in {"warn", "fail"}
    parts = [row.get("reason"), row.get("remedy") if flagged else None]
    samples, named = listed(row, "samples"), listed(row, "assessments")
    if flagged and named:
        parts.append(f"Concerns: {', '.join(map(str, named))}.")
    if flagged and samples:
        parts.append(
            f"Samples: {', '.join(map(str, samples[:5]))}"
            + (f" and {len(samples) - 5} more" if len(samples) > 5 else "")
        )
    return " ".join(short(part, 300) for part in parts if part)


def _words(status: str) -> str:
    return status.replace("_", " ")


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
