"""Flagged checks, failed conditions and broken budgets as SARIF 2.1.0, which code scanning shows beside the lines of params.yaml."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windtunnel.boundary.params_file import entry_names, line_of, read_params
from windtunnel.boundary.writing import writing
from windtunnel.core.contracts import Json
from windtunnel.core.repository import repository
from windtunnel.records.artifacts import package_version
from windtunnel.records.files import write_json
from windtunnel.records.findings import FindingRecord, Severity
from windtunnel.records.gate import GateResult
from windtunnel.records.layout import Layout
from windtunnel.records.metadata import read_metadata
from windtunnel.records.sandwich import layers_in
from windtunnel.registry.plugins import families

_LEVELS = {Severity.HARD: "error", Severity.WARN: "warning", Severity.INFO: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
Finding = tuple[str, str, str, tuple[str, ...]]  # rule, level, message, keys of params.yaml


def write_sarif(gate: GateResult, checks: Sequence[FindingRecord], layout: Layout, path: Path) -> None:
    """Write the findings of a run as SARIF. Equal runs give equal bytes; a finding keeps its fingerprint when its line moves."""
    found = [*_conditions(gate), *_checks(checks, layout.params), *_budgets(layout.summary)]
    top = repository(layout.root.absolute())
    uri = layout.params.absolute().relative_to(top) if top else layout.params
    results = [_result(finding, uri.as_posix(), lambda keys: line_of(layout.params, keys)) for finding in found]
    rules: list[Json] = [{"id": rule} for rule in dict.fromkeys(rule for rule, *_ in found)]
    driver: Json = {"name": "windtunnel", "version": package_version("windtunnel") or "", "rules": rules}
    log: Json = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    with writing(path, where="--sarif", suffixes=(".sarif",)) as temporary:
        write_json(log, temporary)


def _conditions(gate: GateResult) -> Iterator[Finding]:
    for row in gate.conditions:
        if not row.holds:
            message = f"{row.name}: found {row.value}, {row.bound} {row.threshold}. {row.reason}".strip()
            yield f"gate/{row.name.split()[0]}", "error", message, ("gate",)


def _checks(checks: Sequence[FindingRecord], params: Path) -> Iterator[Finding]:
    raw = read_params(params)
    entries: dict[str, tuple[str, ...]] = {
        name: (family, name) for family in families() for name in entry_names(raw, family)
    }
    for row in checks:
        if row.flagged:
            for keys in [entries[name] for name in row.assessments if name in entries] or [("sanity",)]:
                yield (
                    row.id,
                    _LEVELS[row.severity],
                    f"{row.title}: {row.reason or 'flagged'}. {row.remedy}".strip(),
                    keys,
                )


def _budgets(summary: Path) -> Iterator[Finding]:
    for layer in layers_in(read_metadata(summary).metrics) if summary.is_dir() else ():
        if broken := layer.states.get("broken"):
            yield (
                f"broken/{layer.norm}",
                "note",
                f"{broken} of {layer.n} samples are broken at {layer.budget}.",
                ("budget",),
            )


def _result(finding: Finding, uri: str, line: Callable[[Sequence[str]], int]) -> Json:
    rule, level, message, keys = finding
    fingerprint = hashlib.sha256("\0".join((rule, *keys)).encode()).hexdigest()
    location: Json = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line(keys)}}}
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [location],
        "partialFingerprints": {"windtunnel/v1": fingerprint},
    }
