"""The seconds a sample took: measured, so kept in runtime.json and not in the result, whose bytes are those of equal verdicts.

robustness_data.pt keeps the key, without values (NaN). Whoever reads an assessment gets them from runtime.json, as long as that
file speaks of these very tensors: it is no DVC output, so after a checkout it may be missing or speak of others.
"""

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from windtunnel.core.errors import UserError
from windtunnel.records.files import DATA_FILE, RUNTIME_FILE, file_digest, read_json, write_json
from windtunnel.records.layout import HERE
from windtunnel.records.metadata import Record, fitting

RUN_TIMES = "runtime_per_sample"


class Runtime(Record):
    """runtime.json: what varies between equal runs. started: seconds since the epoch. data_digest: of the tensors it speaks of.

    resolved: cache key of the entry that ran. rows_asked: rows sent to a Python `predict` by the process that computed the result.
    rows_repeated: rows of failed calls that were repeated.
    threads: of torch in that process; a worker has one. workers: processes that its work was spread over; None for that process alone.
    peak_memory: bytes of it and its workers, at most; None where the system does not say.
    """

    _empty: ClassVar[tuple[object, ...]] = (None, "")

    started: float | None = None
    seconds: float | None = None
    host: str = ""
    commit: str = ""
    runtime_per_sample: tuple[float, ...] | None = None
    rows_asked: int | None = None
    rows_repeated: int | None = None
    threads: int | None = None
    workers: int | None = None
    peak_memory: int | None = None
    resolved: str = ""
    data_digest: str = ""

    def write(self, directory: Path) -> None:
        """Write runtime.json into `directory`, next to the result."""
        write_json(self.model_dump(mode="json"), directory / RUNTIME_FILE)


def read_runtime(directory: Path) -> Runtime | None:
    """Read the measured times of the result in `directory`; None where the file is missing, damaged or another."""
    try:
        return fitting(Runtime, read_json(directory / RUNTIME_FILE), str(directory), "what was measured")
    except UserError:
        return None


def peak_memory(workers: int = 1) -> int | None:
    """Return the most bytes that this process had at once, and `workers` times the most of one that it started.

    None on Windows, which does not say.
    """
    if sys.platform == "win32":
        return None
    import resource

    own_peak, largest_child = (
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return (own_peak + workers * largest_child) * (1 if sys.platform == "darwin" else 1024)


def write_stage_runtime(stage: str, started: float) -> None:
    """Note how long a stage took that leaves no assessment; `started`: time.time() at its start."""
    seconds = round(time.time() - started, 3)
    Runtime(started=started, seconds=seconds, peak_memory=peak_memory()).write(HERE.runtime / stage)


def measured_run_times(directory: Path, data_digest: str | None = None) -> list[float] | None:
    """Return the seconds of each sample of the assessment in `directory`; None where nothing known speaks of its tensors.

    `data_digest`: sha256 of its robustness_data.pt where that is known already.
    """
    measured = read_runtime(directory)
    if measured is None or measured.runtime_per_sample is None:
        return None
    if data_digest is None and (directory / DATA_FILE).is_file():
        data_digest = file_digest(directory / DATA_FILE)
    return [*measured.runtime_per_sample] if measured.data_digest == data_digest else None


def run_time_metrics(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and 95th percentile of the seconds a sample took; nothing where no time is known."""
    measured = [s for s in seconds if not math.isnan(s)]
    if not measured:
        return {}
    import numpy as np

    median, p95 = np.quantile(measured, (0.5, 0.95)).tolist()
    return {"mean_runtime": math.fsum(measured) / len(measured), "median_runtime": median, "p95_runtime": p95}


@cache
def commit() -> str:
    """Return the git commit of code and params, `1a2b3c4d5e6f` or `1a2b3c4d5e6f-dirty`; empty outside a git repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
