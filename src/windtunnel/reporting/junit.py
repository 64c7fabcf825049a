"""Test reports in JUnit's XML, which CI systems show beside the tests of the code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from windtunnel.boundary.writing import writing
from windtunnel.evaluation.gate.table import NO_CONDITION
from windtunnel.records.findings import FindingRecord, Severity, Status
from windtunnel.records.gate import ConditionStatus, GateResult

# What XML 1.0 has no way to write, not even escaped: an error message with a terminal's colours would make the file unreadable.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """One test case: `result` with its reason in words; `group` is the class name that CI systems sort by."""

    group: str
    name: str
    result: Literal["passed", "failed", "skipped"]
    reason: str = ""


def cases_of_gate(gate: GateResult) -> list[JUnitCase]:
    """Return a case per condition of the gate and one per hard failure; one is skipped where no condition is set."""
    cases = [JUnitCase("windtunnel.gate", "conditions", "skipped", NO_CONDITION)] if gate.is_empty else []
    for row in gate.conditions:
        result: Literal["passed", "failed", "skipped"] = "passed" if row.holds else "failed"
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


_RESULT: dict[Status, Literal["passed", "failed", "skipped"]] = {
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
    count = {result: sum(case.result == result for case in listed) for result in ("failed", "skipped")}
    totals = {
        "tests": str(len(listed)),
        "failures": str(count["failed"]),
        "errors": "0",
        "skipped": str(count["skipped"]),
    }
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
    with writing(path, where="--junit", suffixes=(".xml",)) as temporary:
        ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
