"""Log the start and the end of a stage on the terminal, with its result and the seconds it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.core.epsilons import epsilon_text
from windtunnel.core.errors import UserError
from windtunnel.records.findings import counts, in_words, read_findings
from windtunnel.records.gate import read_gate
from windtunnel.records.headline_metric import leading_metric, leading_words
from windtunnel.records.layout import CLEAN, GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.records.metadata import Metadata, number, read_metadata
from windtunnel.records.sandwich import layers_in

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
    """Return the result of a finished stage in words, read from its files: `67.0% left by the attack, 200 samples, Linf 0.06`."""
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


def _describe_summary(metadata: Metadata) -> str:
    ends = {"worst_case_accuracy": "in the worst case", "certified_accuracy": "certified"}
    parts = [_share(metadata, key, label) for key, label in ends.items() if key in metadata.metrics]
    layer = next(iter(layers_in(metadata.metrics)), None)
    if layer and parts and layer.n_certified < layer.n:
        parts.append(f"of {layer.n_certified} of {layer.n} samples")
    return ", ".join(parts) or "nothing attacked, nothing verified"


def _describe_assessment(metadata: Metadata) -> str:
    if metadata.failure:
        return f"no result: {metadata.failure.reason}"
    key, n, region = leading_metric(metadata), len(metadata.kwargs.sample_names), metadata.semantics.perturbation
    share = _share(metadata, key, leading_words(metadata)) if key else "done"
    count = f"{n} sample{'' if n == 1 else 's'}" if n else ""
    where = f"{region.norm} {epsilon_text(region.epsilon)}" if region.norm and region.epsilon is not None else ""
    return ", ".join(filter(None, (share, count, where)))


def _share(metadata: Metadata, key: str, words: str) -> str:
    return f"{number(metadata.metrics, key):.1%} {words}"
