"""Findings for CI: test reports in JUnit's XML, shown beside the tests of the code, and SARIF 2.1.0 for code scanning.

SARIF has flagged checks, failed conditions and broken budgets at the lines of params.yaml.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from windtunnel.boundary.params_file import entry_names, lines_of, read_params
from windtunnel.boundary.writing import check_output
from windtunnel.core.contracts import Json
from windtunnel.core.references import repository
from windtunnel.evaluation.gate.table import NO_CONDITION
from windtunnel.records.artifacts import package_version
from windtunnel.records.files import replacing, write_json
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.gate import ConditionStatus, GateResult
from windtunnel.records.layout import Layout
from windtunnel.records.metadata import read_metadata
from windtunnel.records.sandwich import layers_in
from windtunnel.registry.plugins import families

Result = Literal["passed", "failed", "skipped"]
# What XML 1.0 has no way to write, not even escaped: an error message with a terminal's colours would make the file unreadable.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One test case: `result` with its reason in words; `group` is the class name that CI systems sort by."""

    group: str
    name: str
    result: Result
    reason: str = ""


def cases_of_gate(gate: GateResult) -> list[JUnitCase]:
    """Return a case per condition of the gate and one per hard failure; one is skipped where no condition is set."""
    cases = [JUnitCase("windtunnel.gate", "conditions", "skipped", NO_CONDITION)] if gate.is_empty else []
    for row in gate.conditions:
        result: Result = "passed" if row.holds else "failed"
        basis = f" ({row.basis})" if row.basis else ""
        interval = f" [{row.interval[0]:.3f}, {row.interval[1]:.3f}]" if row.interval else ""
        numbers = f"found {row.value}{interval}{basis}, {row.bound} {row.threshold}. "
        if row.status is ConditionStatus.NOT_APPLICABLE:
            result, numbers = "skipped", f"{row.status}, "
        cases.append(JUnitCase("windtunnel.gate", row.name, result, f"{numbers}{row.reason}".strip()))
    hard = gate.hard_failures
    return [
        *cases,
        *(JUnitCase("windtunnel.gate.hard_failures", line.partition(":")[0], "failed", line) for line in hard),
    ]


_RESULT: dict[Status, Result] = {
    Status.PASS: "passed",
    Status.FAIL: "failed",
    Status.WARN: "passed",
    Status.NOT_RUN: "skipped",
    Status.NOT_APPLICABLE: "skipped",
}


def cases_of_checks(rows: Iterable[FindingRecord]) -> list[JUnitCase]:
    """Return a case per HARD sanity check; one that was not run or does not apply is skipped with its reason."""
    cases = []
    for row in rows:
        if row.severity is Severity.HARD:
            remedy = f". {row.remedy}" if row.status is Status.FAIL else ""
            reason = f"{row.reason or row.title}{remedy}"
            cases.append(
                JUnitCase(f"windtunnel.sanity.{row.group}", f"{row.id} {row.title}", _RESULT[row.status], reason)
            )
    return cases


def write_junit(name: str, cases: Iterable[JUnitCase], path: Path) -> None:
    """Write a test suite. No time and no host: equal runs give equal bytes."""
    listed = list(cases)
    results = [case.result for case in listed]
    failed, skipped = str(results.count("failed")), str(results.count("skipped"))
    totals = {"tests": str(len(listed)), "failures": failed, "errors": "0", "skipped": skipped}
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", totals)
    for case in listed:
        element = ElementTree.SubElement(suite, "testcase", classname=case.group, name=_NOT_XML.sub("?", case.name))
        reason = _NOT_XML.sub("?", case.reason)
        if case.result == "failed":
            ElementTree.SubElement(element, "failure", message=reason).text = reason
        elif case.result == "skipped":
            ElementTree.SubElement(element, "skipped", message=reason)
    ElementTree.indent(suites)
    with replacing(check_output(path, where="--junit", suffixes=(".xml",))) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)


_LEVELS = {Severity.HARD: "error", Severity.WARN: "warning", Severity.INFO: "note"}
_HELP: Json = {"text": "docs/sanity.md, docs/gate.md"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class SarifResult(NamedTuple):
    """One result. keys: its place in params.yaml; identity: the part of the fingerprint beside the rule."""

    rule: str
    title: str
    level: str
    message: str
    keys: tuple[str, ...]
    identity: str


def write_sarif(gate: GateResult, checks: Sequence[FindingRecord], layout: Layout, path: Path) -> None:
    """Write the findings of a run as SARIF. Equal runs give equal bytes; a finding keeps its fingerprint when its line moves."""
    raw = read_params(layout.params)
    entries = {name: (family, name) for family in families() for name in entry_names(raw, family)}
    findings = [*_conditions(gate), *_checks(checks, entries), *_budgets(layout.summary, entries)]
    top = repository(layout.root.absolute())
    uri = layout.params.absolute().relative_to(top) if top else layout.params
    line_of = lines_of(layout.params)
    results = [_result(finding, uri.as_posix(), line_of) for finding in findings]
    titles = {finding.rule: {"text": finding.title} for finding in findings}
    rules: list[Json] = [
        {"id": rule, "shortDescription": text, "fullDescription": text, "help": _HELP} for rule, text in titles.items()
    ]
    driver: Json = {"name": "windtunnel", "version": package_version("windtunnel") or "", "rules": rules}
    log: Json = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    with replacing(check_output(path, where="--sarif", suffixes=(".sarif",))) as temporary:
        write_json(log, temporary)


_GATE_KEYS = {"samples": "minimum_samples", "hard failures": "no_hard_failures"}


def _conditions(gate: GateResult) -> Iterator[SarifResult]:
    for row in gate.conditions:
        if not row.holds:
            metric, _, champion = row.name.partition(" vs ")
            block = "maximum_regression" if champion else "minimum"
            keys = (_GATE_KEYS[metric],) if metric in _GATE_KEYS else (block, metric)
            message = f"{row.name}: found {row.value}, {row.bound} {row.threshold}. {row.reason}".strip()
            rule = f"gate/{row.name.replace(' ', '_')}"
            yield SarifResult(rule, f"Condition of the gate: {row.name}", "error", message, ("gate", *keys), "")


def _checks(checks: Sequence[FindingRecord], entries: Mapping[str, tuple[str, ...]]) -> Iterator[SarifResult]:
    for row in checks:
        names = [name for name in row.assessments if name in entries] or [""]
        for name in names if row.flagged else ():
            message = f"{row.title}: {row.each.get(name, row.reason) or 'flagged'}. {row.remedy}".strip()
            yield SarifResult(row.id, row.title, _LEVELS[row.severity], message, entries.get(name, ("sanity",)), name)


def _budgets(summary: Path, entries: Mapping[str, tuple[str, ...]]) -> Iterator[SarifResult]:
    for layer in layers_in(read_metadata(summary).metrics) if summary.is_dir() else ():
        if broken := layer.states.get("broken"):
            of_this_budget = {draw.name for draw in layer.draws}
            breaking = sorted(layer.attacked_by, key=lambda name: name not in of_this_budget)
            keys = next((entries[name] for name in breaking if name in entries), ("budget",))
            message = f"{broken} of {layer.n} samples are broken at {layer.budget}."
            title = f"Samples broken within a budget in {layer.norm}"
            yield SarifResult(f"broken/{layer.norm}", title, "note", message, keys, layer.budget)


def _result(finding: SarifResult, uri: str, line: Callable[[Sequence[str]], int]) -> Json:
    fingerprint = hashlib.sha256(f"{finding.rule}\0{finding.identity}".encode()).hexdigest()
    region: Json = {"startLine": line(finding.keys)}
    return {
        "ruleId": finding.rule,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}],
        "partialFingerprints": {"windtunnel/v1": fingerprint},
    }
