"""`python -m`, `dvc` and `windtunnel` as processes forked from one that has imported torch, DVC and MLflow already.

A stage of the pipeline costs what it computes then, not two to three seconds of imports. Nothing of windtunnel itself is
imported before the fork: each process imports the source that its PYTHONPATH names.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path

# What commands and stages import; not what only a few of them do.
_MODULES = (
    "torch", "torch.export", "numpy.testing", "scipy.stats", "scipy.ndimage", "sklearn.datasets", "sklearn.metrics", "pandas",
    "torchattacks", "foolbox", "skimage.filters", "onnx", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "reportlab.platypus", "jinja2", "pydantic", "ruamel.yaml", "rich.live", "rich.progress", "click", "psutil", "networkx",
    "statsmodels.stats.proportion", "mlflow", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "dvc.cli",
    "dvc.commands.repro", "dvc.repo.reproduce", "dvc.repo.experiments.queue.tempdir", "dvc.repo.experiments.executor.local",
    # What stages import only where they first train, export or verify: one to three seconds of each stage that does.
    "torch._dynamo", "torch.ao.quantization.quantize_fx", "torch.onnx.utils", "torch.export._trace", "torch._inductor.codecache",
    "torch.export.pt2_archive._package", "torch.utils.cpp_extension", "sympy.tensor.tensor", "onnxruntime", "onnx.inliner",
    "skimage.util", "cv2", "PIL.JpegImagePlugin", "PIL.ImageFont", "xml.sax.saxutils", "reportlab.graphics.shapes",
    "statsmodels.stats.multitest", "pydantic.dataclasses", "dvc.cli.parser", "alembic.command", "sqlalchemy.dialects.sqlite",
    "mlflow.tracing.processor.otel", "mlflow.store.tracking.sqlalchemy_workspace_store", "filelock",
)  # fmt: skip
# Runs without site-packages; `-m` of another module, a script and `-c` are the real Python's.
_CLIENT = """#!{python} -IS
import os, signal, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
module = words[1] if words[:1] == ["-m"] and len(words) > 1 else ""
if name == "python" and not (module in ("dvc", "windtunnel") or module.startswith("stages.")):
    os.execv({python!r}, [{python!r}, *words])
import json
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
task = json.dumps([name, words, os.getcwd(), dict(os.environ), os.getpgrp()]).encode()
socket.send_fds(server, [len(task).to_bytes(8, "big")], [0, 1, 2])
server.sendall(task)
child = int.from_bytes(server.recv(8), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(child, number))
code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@cache
def preloaded_commands(python: str = sys.executable) -> Path:
    """Start the server, once a process and until its end; return the folder of the commands, to be put before PATH.

    Args:
        python: of the environment whose commands they are.
    """
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
    address = str(folder / "socket")
    for name in ("python", "dvc", "windtunnel"):
        (folder / name).write_text(_CLIENT.format(python=python, address=address))
        (folder / name).chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("PYTHONPATH", "MLFLOW_TRACKING_URI"):
        environment.pop(name, None)
    started = subprocess.Popen(
        [python, __file__, address], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(started.kill)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    return folder


def _serve(address: str) -> None:
    for module in _MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1  # a fork has no other thread
    gc.collect()
    gc.freeze()
    commands = Path(address).parent
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)
        print("ready", flush=True)
        while True:
            # The end of stdin: whoever started this process has ended.
            readable = select.select([listening, sys.stdin], [], [])[0]
            if sys.stdin in readable:
                return
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    listening.close()
                    _supervise(connection, commands)


def _supervise(connection: socket.socket, commands: Path) -> None:
    """Fork the process of one command, send its id, wait for it and send its exit code; end it where the client ended."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += connection.recv(size - len(text))
    child = os.fork()
    if child == 0:
        connection.close()
        _run(json.loads(text), streams, commands)
    for stream in streams:
        os.close(stream)
    connection.sendall(child.to_bytes(8, "big"))
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if select.select([connection], [], [], 0.01)[0]:
            os.kill(child, signal.SIGKILL)
    with suppress(BrokenPipeError):
        connection.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(8, "big", signed=True))
    os._exit(0)


def _run(task: tuple[str, list[str], str, dict[str, str], int], streams: list[int], commands: Path) -> None:
    """Be the process that Python would have started for this command."""
    name, words, folder, environment, group = task
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, 1, "utf-8", closefd=False) for number, mode in enumerate("rww")
        )
        with suppress(PermissionError):
            os.setpgid(0, group)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        importlib.import_module("numpy").random.seed()
        sys.executable = str(commands / "python")
        first = folder if name == "python" else str(Path(sys.prefix) / "bin")
        paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[:] = [first, *paths, *sys.path[1:]]  # which had the folder of this file first
        importlib.invalidate_caches()
        sys.modules.pop("sitecustomize", None)
        with suppress(ImportError):
            importlib.import_module("sitecustomize")
        if "windtunnel" in (name, *words[1:2]):
            _fork_server_from_here()
        if name == "python":
            sys.argv = ["-m", *words[2:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(Path(first) / name), *words]
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code == 1 and error.code != 1:
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()
            atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                output.flush()
        os._exit(code)


def _fork_server_from_here() -> None:
    """Make multiprocessing's fork server a fork of this process too, taken now that it has one thread, and not a new Python."""
    ours, theirs = socket.socketpair()
    waiting = os.fork()
    if waiting == 0:
        ours.close()
        head, numbers, _, _ = socket.recv_fds(theirs, 2**16, 2)
        theirs.close()
        if head:  # not where the command ends without a fork server
            command, wanted = json.loads(head)
            spare = [fcntl.fcntl(number, fcntl.F_DUPFD, 100) for number in numbers]  # above every wanted number
            for number, target in zip(spare, wanted, strict=True):
                os.dup2(number, target)
            with suppress(SystemExit):
                exec(command, {})
        os._exit(0)
    theirs.close()
    start = multiprocessing.util.spawnv_passfds

    def start_or_wake(path: str, arguments: list[str], descriptors: list[int]) -> int:
        command = os.fsdecode(arguments[-1])
        if "multiprocessing.forkserver" not in command or ours.fileno() < 0:
            return start(path, arguments, descriptors)
        socket.send_fds(ours, [json.dumps([command, descriptors]).encode()], descriptors)
        ours.close()
        return waiting

    multiprocessing.util.spawnv_passfds = start_or_wake


if __name__ == "__main__":
    _serve(sys.argv[1])
