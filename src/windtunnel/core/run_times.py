"""The seconds a sample took: measured, so kept in runtime.json and not in the result, whose bytes are those of equal verdicts.

robustness_data.pt keeps the key, without values (NaN). Whoever reads an assessment gets them from runtime.json, as long as that
file speaks of these very tensors: it is no DVC output, so after a checkout it may be missing or speak of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.core.files import DATA_FILE, RUNTIME_FILE, file_digest, read_json

RUN_TIMES = "runtime_per_sample"


def measured_run_times(directory: Path, data_digest: str | None = None) -> list[float] | None:
    """The seconds of each sample of the assessment in `directory`; None where nothing known speaks of its tensors.

    `data_digest`: sha256 of its robustness_data.pt where that is known already.
    """
    try:
        facts = read_json(directory / RUNTIME_FILE)
    except UserError:
        return None
    seconds = facts.get(RUN_TIMES) if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(seconds, list):
        return None
    if data_digest is None and (directory / DATA_FILE).is_file():
        data_digest = file_digest(directory / DATA_FILE)
    return [float(str(s)) for s in seconds] if facts.get("data_digest") == data_digest else None


def run_time_metrics(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and 95th percentile of the seconds a sample took; nothing where no time is known."""
    known = sorted(s for s in seconds if not math.isnan(s))
    if not known:
        return {}
    return {
        "mean_runtime": math.fsum(known) / len(known),
        "median_runtime": _quantile(known, 0.5),
        "p95_runtime": _quantile(known, 0.95),
    }


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Between the two values around it, as NumPy's and torch's default."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
