"""What a stage says on the terminal: a line at its start, and a line at its end with what was found and the seconds it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from windtunnel.core.contracts import Json
from windtunnel.core.epsilons import epsilon_text
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, read_json
from windtunnel.core.layout import CLEAN, GATE, ROBUSTNESS, SANITY, SUMMARY

_KEYS = {
    "adversarial_accuracy": "left by the attack", "certified_accuracy": "certified", "corrupted_accuracy": "right when corrupted",
    "lara": "left in latent space", "clean_accuracy": "right without any change",
}  # fmt: skip
_OF_STAGE = {"clean": CLEAN, "summary": SUMMARY, "sanity": SANITY}


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
            gate = read_json(GATE)
            return str(gate.get("decision", "done")) if isinstance(gate, dict) else "done"
        metadata = read_json((ROBUSTNESS / name if name else _OF_STAGE[stage]) / METADATA_FILE)
    except (KeyError, UserError):  # a stage that leaves no metadata.json
        return "done"
    return _in_words(stage, metadata) if isinstance(metadata, dict) else "done"


def _in_words(stage: str, metadata: Mapping[str, Json]) -> str:
    metrics, kwargs = _block(metadata, "metrics"), _block(metadata, "kwargs")
    if stage == "sanity":
        checks = kwargs.get("checks")
        statuses = (
            [str(row.get("status")) for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
        )
        return ", ".join(f"{statuses.count(s)} {s.replace('_', ' ')}" for s in dict.fromkeys(statuses)) or "no checks"
    if stage == "summary":
        parts = [
            _share(metrics, "worst_case_accuracy", "in the worst case"),
            _share(metrics, "certified_accuracy", "certified"),
        ]
        return ", ".join(filter(None, parts)) or "nothing attacked, nothing verified"
    keys = ("clean_accuracy",) if stage == "clean" else tuple(_KEYS)
    share = next((_share(metrics, key, _KEYS[key]) for key in keys if key in metrics), "done")
    names, region = kwargs.get("sample_names"), _block(_block(metadata, "semantics"), "perturbation")
    n = len(names) if isinstance(names, list) else 0
    count = f"{n} sample{'' if n == 1 else 's'}" if n else ""
    where = (
        f"{region['norm']} {epsilon_text(float(str(region['epsilon'])))}"
        if {"norm", "epsilon"} <= region.keys()
        else ""
    )
    return ", ".join(filter(None, (share, count, where)))


def _share(metrics: Mapping[str, Json], key: str, words: str) -> str:
    return f"{float(str(metrics[key])):.1%} {words}" if key in metrics else ""


def _block(row: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}
