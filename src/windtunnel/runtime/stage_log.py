"""Log the start and the end of a stage on the terminal, with its result and the seconds it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.core.errors import UserError
from windtunnel.records.basis import basis_of, leading_metric, leading_words
from windtunnel.records.findings import counts, in_words, read_findings
from windtunnel.records.gate import read_gate
from windtunnel.records.layout import CLEAN, GATE, HERE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.records.metadata import Metadata, rate, read_metadata
from windtunnel.records.run_times import Runtime, read_runtime

_DIRECTORIES = {"clean": CLEAN, "summary": SUMMARY}


@contextmanager
def log_stage(stage: str, name: str = "") -> Iterator[None]:
    """Print a line before and a line after the work of a stage; `name` is the entry of a family's stage."""
    label = f"{stage}@{name}" if name else stage
    print(f"{label}: started", flush=True)
    started = time.perf_counter()
    yield
    print(f"{label}: {describe_result(stage, name)} ({time.perf_counter() - started:.1f} s)", flush=True)


def describe_result(stage: str, name: str) -> str:
    """Return the result of a finished stage in words, read from its files: `67.0% [60.2%, 73.1%] robust accuracy (Linf 0.06, n 200)`."""
    try:
        if stage == "gate":
            gate = read_gate(GATE)
            return "no condition is set" if gate.is_empty else gate.decision.value
        if stage == "sanity":
            return in_words(counts(read_findings(SANITY))) or "no checks"
        metadata = read_metadata(ROBUSTNESS / name if name else _DIRECTORIES[stage])
    except (KeyError, UserError):  # a stage that leaves no metadata.json
        return "done"
    return _describe_summary(metadata) if stage == "summary" else _describe_assessment(metadata)


def stage_runtime(stage: str, name: str) -> Runtime | None:
    """Return what was measured of the last run of a stage, or of its entry `name`; None where that is not known."""
    folder = ROBUSTNESS if name or stage == "clean" else HERE.reports
    return read_runtime(folder / (name or stage)) or read_runtime(HERE.runtime / stage)


def _describe_summary(metadata: Metadata) -> str:
    ends = {"worst_case_accuracy": "in the worst case", "certified_accuracy": "certified"}
    parts = [f"{value} {label}" for key, label in ends.items() if (value := rate(metadata.metrics, key))]
    basis = basis_of(metadata, "worst_case_accuracy")
    return f"{', '.join(parts)} ({basis})" if parts else "nothing attacked, nothing verified"


def _describe_assessment(metadata: Metadata) -> str:
    if metadata.failure:
        return f"no result: {metadata.failure.reason}"
    key, basis = leading_metric(metadata), basis_of(metadata, "")
    share = f"{rate(metadata.metrics, key)} {leading_words(metadata)}" if key else "done"
    return f"{share} ({basis})" if str(basis) else share
