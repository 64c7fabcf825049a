"""Show if the numbers can be trusted: the checks by group, and the gate's decision."""

from windtunnel.evaluation.gate.table import NO_CONDITION, SIGN
from windtunnel.records.findings import FindingRecord, Status, counts, in_words
from windtunnel.records.findings import Severity as Level
from windtunnel.records.gate import ConditionStatus, Decision, GateResult
from windtunnel.reporting.report.model import Block, Highlight, Section, Severity, Table, Text
from windtunnel.reporting.report.phrases import interval, listed, short

SANITY = "Can I trust these numbers?"
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
_DECISIONS: dict[Decision, tuple[Severity, str]] = {
    Decision.PASSED: ("info", "The model meets every condition of the gate."),
    Decision.FAILED: ("warning", "The model does not meet every condition of the gate."),
    Decision.UNSOUND: ("invalid", "The evaluation is not sound, so the gate does not judge the model."),
}


def is_flagged(row: FindingRecord) -> bool:
    """Return True if a check shows that a number may mislead; what only informs does not."""
    return row.status is Status.FAIL or (row.status is Status.WARN and row.severity is not Level.INFO)


def warnings_of(checks: tuple[FindingRecord, ...] | None) -> list[str]:
    """Return a line per check that flagged: what was seen, and what to do. Not the hard ones, which are failures of the summary."""
    return [
        f"{row.id} {row.title}: {_sentence(row.reason or 'flagged')} {row.remedy}".strip()
        for row in checks or ()
        if is_flagged(row) and not (row.status is Status.FAIL and row.severity is Level.HARD)
    ]


def sanity_line(checks: tuple[FindingRecord, ...] | None) -> Highlight:
    """All checks in one line, for page one."""
    if checks is None:
        return Highlight("warning", "Sanity: no checks ran, so the evaluation itself is not checked.")
    flagged = [row for row in checks if is_flagged(row)]
    named = ", ".join(f"{row.id} {row.title[:1].lower()}{row.title[1:]}" for row in flagged)
    hard = any(row.severity is Level.HARD for row in flagged)
    severity: Severity = "invalid" if hard else "warning" if flagged else "info"
    return Highlight(severity, f"Sanity: {in_words(counts(checks))}{f'; flagged: {named}' if named else ''}.")


def sanity_section(checks: tuple[FindingRecord, ...], found_gate: GateResult | None) -> Section:
    """Return the checks that flagged, with what was seen and what to do; what was not run; the others in the appendix."""
    introduction = Text(
        f"{len(checks)} checks: {in_words(counts(checks))}. Passing them is necessary, not sufficient: a number that passes "
        "every check may still be too high, and a check that did not run is no evidence."
    )
    header = ("id", "check", "result", "what was seen", "what to do", "concerns")
    flagged = tuple(
        (row.id, row.title, _result(row), short(row.reason, 300), short(row.remedy, 300), _concerns(row))
        for row in checks
        if row.flagged
    )
    blocks: list[Block] = [introduction, Table("What was flagged", header, flagged)]
    not_run: dict[str, list[str]] = {}
    for row in checks:
        if row.status is Status.NOT_RUN:
            not_run.setdefault(row.reason, []).append(row.id)
    if not_run:
        rows = tuple((", ".join(ids), reason) for reason, ids in not_run.items())
        blocks.append(Table("What was not run", ("checks", "why"), rows))
    return Section(SANITY, tuple(blocks), (gate_section(found_gate),) if found_gate else ())


def checks_appendix(checks: tuple[FindingRecord, ...]) -> Section:
    """Every check, by group: value, threshold, and the source of the check."""
    header = ("id", "check", "severity", "result", "value", "threshold", "n", "source")
    rows: dict[str, list[tuple[str, ...]]] = {group: [] for group in sorted({row.group for row in checks})}
    for row in sorted(checks, key=lambda row: _ORDER.index(row.status)):
        numbers = map(short, (row.value, row.threshold, row.n))
        cells = (row.id, row.title, row.severity.value, _result(row), *numbers, short(row.source, 60))
        rows[row.group].append(cells)
    tables = (Table(_GROUPS.get(group, f"Group {group}"), header, tuple(mine)) for group, mine in rows.items())
    return Section("Every sanity check", tuple(tables), detail=True)


def _concerns(row: FindingRecord) -> str:
    parts = [listed(row.assessments, 6)] if row.assessments else []
    if row.samples:
        parts.append(f"samples {listed(row.samples, 3)}")
    return "; ".join(parts) or "the run"


def _sentence(value: object) -> str:
    text = str(value)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _result(row: FindingRecord) -> str:
    if row.status is Status.WARN and row.severity is Level.INFO:
        return "note"
    return _MARK.get(row.status, "") + row.status.replace("_", " ")


def gate_line(gate: GateResult | None) -> Highlight:
    """Return the gate's decision in one line, for page one."""
    if gate is None:
        return Highlight("warning", "Gate: not decided yet.")
    severity, sentence = _decision(gate)
    verdict = () if severity == "none" else (f"{gate.decision}.",)
    named: dict[ConditionStatus | None, list[str]] = {}
    for row in gate.conditions:
        named.setdefault(row.status, []).append(row.name)
    parts = [
        f"{title}: {', '.join(named[status])}."
        for status, title in (
            (ConditionStatus.REFUSED, "Refused, no estimate"),
            (ConditionStatus.FAILS, "Not met"),
            (ConditionStatus.NOT_APPLICABLE, "Not applicable, no champion"),
        )
        if status in named
    ]
    if ConditionStatus.HOLDS in named and not {ConditionStatus.REFUSED, ConditionStatus.FAILS} & named.keys():
        parts.insert(0, f"{len(named[ConditionStatus.HOLDS])} conditions hold.")
    return Highlight(severity, " ".join(("Gate:", *verdict, sentence, *parts)))


def _decision(gate: GateResult) -> tuple[Severity, str]:
    """Return the colour and the sentence of a decision; grey where no condition is set or none applies."""
    if gate.is_empty:
        return "none", f"{NO_CONDITION}, so it does not judge the model."
    if all(row.status is ConditionStatus.NOT_APPLICABLE for row in gate.conditions):
        return "none", "no condition applies, so it does not judge the model."
    if gate.decision is Decision.UNSOUND and not gate.hard_failures:
        return "invalid", "The run has no unbiased estimate of a metric that a condition uses."
    if (
        any(row.status is ConditionStatus.NOT_APPLICABLE for row in gate.conditions)
        and gate.decision is Decision.PASSED
    ):
        return "info", "The model meets every condition of the gate that applies."
    return _DECISIONS[gate.decision]


def gate_section(gate: GateResult) -> Section:
    """Return the decision in sentence, and every condition."""
    blocks: list[Block] = [Highlight(*_decision(gate))]
    if gate.conditions:
        header = ["condition", "of", "value", "interval", "threshold", "result", "reason"]
        width = len(header) - (not any(row.reason for row in gate.conditions))
        rows = []
        for row in gate.conditions:
            numbers = (short(row.value), interval(row.interval, ".4g"), f"{SIGN[row.bound]} {short(row.threshold)}")
            rows.append((row.name, row.basis, *numbers, str(row.status), short(row.reason, 200))[:width])
        blocks.append(Table("The conditions of the gate", tuple(header[:width]), tuple(rows)))
    blocks.append(Text(f"windtunnel gate    # exits with {gate.exit_code}", code=True))
    return Section("The gate", tuple(blocks))
