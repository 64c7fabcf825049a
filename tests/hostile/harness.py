"""Runs the real entry points as a newcomer would, each in a process of its own, without paying for their imports.

A fork of the test's process has torch and all the rest imported already: a case costs a tenth of a second, not four.
"""

from __future__ import annotations

import copy
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import torch  # noqa: F401  imported before the fork
from ruamel.yaml import YAML

import windtunnel.assessments.attacks.assess
import windtunnel.assessments.verification.assess
import windtunnel.assessments.verification.vnnlib
import windtunnel.boundary.data.load
import windtunnel.boundary.models.load
import windtunnel.evaluation.sanity.run
from windtunnel.cli.main import main
from windtunnel.evaluation.validate import validate
from windtunnel.operations.resolve.build import Resolver
from windtunnel.operations.resolve.closure import Memory

SECONDS, MEMORY = 20.0, 2 * 2**30
# What commands import when they are called; a fork that does it alone pays up to two seconds of processor time.
IMPORTED_LATE = (
    "PIL.JpegImagePlugin", "scipy.stats", "sklearn.metrics", "torch.export._trace", "torchattacks",
    "windtunnel.assessments.verification.branch_and_bound.session",
    "windtunnel.assessments.verification.cascade.search_step", "windtunnel.boundary.data.slices", "windtunnel.cli.compatibility",
    "windtunnel.cli.project", "windtunnel.cli.verify", "windtunnel.reporting.answers",
    "torch._dynamo", "torch.ao.quantization.quantize_fx", "onnxruntime", "onnx.inliner", "sympy", "xml.sax.saxutils",
    "reportlab.graphics.shapes", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracing.processor.otel",
    "mlflow.store.tracking.sqlalchemy_workspace_store", "sqlalchemy.dialects.sqlite",
    "windtunnel.operations.tracking.store", "windtunnel.reporting.report.build",
    *(f"windtunnel.operations.stages.{name}" for name in (
        "clean", "entry", "gate", "prepare", "report", "resolve", "sanity", "summary", "track", "train",
    )),
)  # fmt: skip


@cache
def import_late_modules() -> None:
    """Import and parse, once a process and before its first fork, what would be imported and parsed in every fork."""
    for name in IMPORTED_LATE:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        list(Resolver(validate(BASE), Memory(Path(folder) / "memory.json")).stages())


def busy() -> float:
    """How many times longer a case takes because others work on this machine; 1 where every process has a core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


BASE: dict[str, object] = {
    "seed": 0,
    "device": "cpu",
    "data": {"source": "digits", "samples": {"n": 20}},
    "model": {"source": "train", "train": {"architecture": "mlp", "epochs": 1}},
    "budget": {"norm": "Linf", "epsilon": "0.1"},
    "budgets": {},
    "clean": {},
    "attacks": {"fgsm": {"library": "torchattacks", "algorithm": "FGSM"}},
    "queries": {},
    "sweeps": {},
    "verification": {},
    "corruptions": {},
    "generators": {"source": "none"},
    "latent": {},
    "sanity": {"profile": "stored"},
    "report": {},
    "tracking": {},
    "gate": {},
}


@dataclass(frozen=True)
class Ended:
    """How a run ended. `seconds`, `memory`: the wall-clock time and the peak of the resident bytes."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int

    @property
    def line(self) -> str:
        """The one line on stderr. Fails where there is another number of lines, or a traceback."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert len(lines) == 1, self.err[-3000:]
        return lines[0]


def params(**changes: object) -> dict[str, object]:
    """BASE with these top-level blocks merged in, key by key; a value of None takes a key away."""
    whole = copy.deepcopy(BASE)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(whole.get(key), dict):
            whole[key] = {**whole[key], **value}
        else:
            whole[key] = value
    return whole


def write_params(folder: Path, content: object) -> None:
    """params.yaml: text as it is, bytes as they are, anything else as YAML."""
    path = folder / "params.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe", pure=True).dump(content, file)


def windtunnel(*arguments: str, cwd: Path, seconds: float = SECONDS, env: Mapping[str, str] | None = None) -> Ended:
    """`windtunnel ARGUMENTS` in `cwd`."""
    return _forked(lambda: main(list(arguments)), cwd, seconds, env or {})


def stage(
    name: str, *arguments: str, cwd: Path, seconds: float = SECONDS, file_size: int | None = None, clock: float = 1.0
) -> Ended:
    """`python -m stages.NAME ARGUMENTS` in `cwd`, after `resolve` where it has not run.

    file_size: no file larger than so many bytes. clock: how fast the clocks of the process run.
    """

    def run() -> None:
        for name_of_clock in ("time", "monotonic", "perf_counter"):
            setattr(time, name_of_clock, _scaled(getattr(time, name_of_clock), clock))
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        if not Path("reports/resolved").is_dir():
            sys.argv = ["resolve"]
            runpy.run_module("stages.resolve", run_name="__main__", alter_sys=True)
        sys.argv = [name, *arguments]
        runpy.run_module(f"stages.{name}", run_name="__main__", alter_sys=True)

    return _forked(run, cwd, seconds, {})


def _scaled(clock: Callable[[], float], factor: float) -> Callable[[], float]:
    start = clock()
    return lambda: start + factor * (clock() - start)


def _forked(work: object, cwd: Path, seconds: float, env: Mapping[str, str]) -> Ended:
    assert callable(work)
    import_late_modules()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(work, cwd, env, (out.fileno(), err.fileno()))
        ended = _wait(child, seconds)
        text = [_text(file) for file in (out, err)]
    if ended is None:
        return Ended(124, *text, time.monotonic() - started, 0)
    status, usage = ended
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, *text, time.monotonic() - started, usage.ru_maxrss * 1024)


def _child(work: object, cwd: Path, env: Mapping[str, str], streams: Sequence[int]) -> None:
    code = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.chdir(cwd)
        os.environ.update(env)
        for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(cwd))]:
            del sys.modules[name]
        data = int(
            next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
        )
        limit = data * 1024 + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        sys.setrecursionlimit(1000)  # Python's own: a library that another test imported may have raised it
        work()  # type: ignore[operator]
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _wait(child: int, seconds: float) -> tuple[int, resource.struct_rusage] | None:
    deadline = time.monotonic() + seconds * busy()
    while time.monotonic() < deadline:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.wait4(child, 0)
    return None


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read().decode("utf-8", "replace")  # type: ignore[attr-defined]
