"""What a stage says on the terminal: a line at its start, and a line at its end with what was found and the seconds it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from windtunnel.core.epsilons import epsilon_text
from windtunnel.core.errors import UserError
from windtunnel.core.findings import counts, in_words, read_findings
from windtunnel.core.gate import read_gate
from windtunnel.core.layout import CLEAN, GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.core.leading import leading_metric, leading_words
from windtunnel.core.metadata import Metadata, number, read_metadata
from windtunnel.core.sandwich import layers_in

_OF_STAGE = {"clean": CLEAN, "summary": SUMMARY}


@contextmanager
def narrated(stage: str, name: str = "") -> Iterator[None]:
    """The two lines around the work of a stage, for one of a family with the name of its entry."""
    label = f"{stage}@{name}" if name else stage
    print(f"{label}: started", flush=True)
    began = time.perf_counter()
    yield
    print(f"{label}: {found_words(stage, name)} ({time.perf_counter() - began:.1f} s)", flush=True)


def say(line: str | None) -> None:
    """A line on stderr about something that is done otherwise than params.yaml has it; nothing where there is none."""
    if line:
        print(f"windtunnel: {line}", file=sys.stderr, flush=True)


def found_words(stage: str, name: str) -> str:
    """What a stage that is over found, from what it wrote: `67.0% left by the attack, 200 samples, Linf 0.06`."""
    try:
        if stage == "gate":
            gate = read_gate(GATE)
            return "no condition is set" if gate.is_empty else gate.decision.value
        if stage == "sanity":
            return in_words(counts(read_findings(SANITY))) or "no checks"
        metadata = read_metadata(ROBUSTNESS / name if name else _OF_STAGE[stage])
    except (KeyError, UserError):  # a stage that leaves no metadata.json
        return "done"
    return _of_the_summary(metadata) if stage == "summary" else _of_an_assessment(metadata)


def _of_the_summary(metadata: Metadata) -> str:
    ends = {"worst_case_accuracy": "in the worst case", "certified_accuracy": "certified"}
    parts = [_share(metadata, key, words) for key, words in ends.items() if key in metadata.metrics]
    layer = next(iter(layers_in(metadata.metrics)), None)
    if layer and parts and layer.n_certified < layer.n:
        parts.append(f"of {layer.n_certified} of {layer.n} samples")
    return ", ".join(parts) or "nothing attacked, nothing verified"


def _of_an_assessment(metadata: Metadata) -> str:
    if metadata.failure:
        return f"no result: {metadata.failure.reason}"
    key, n, region = leading_metric(metadata), len(metadata.kwargs.sample_names), metadata.semantics.perturbation
    share = _share(metadata, key, leading_words(metadata)) if key else "done"
    count = f"{n} sample{'' if n == 1 else 's'}" if n else ""
    where = f"{region.norm} {epsilon_text(region.epsilon)}" if region.norm and region.epsilon is not None else ""
    return ", ".join(filter(None, (share, count, where)))


def _share(metadata: Metadata, key: str, words: str) -> str:
    return f"{number(metadata.metrics, key):.1%} {words}"
