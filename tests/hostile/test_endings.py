"""No run ends unseen: code of the user's that ends or hangs the process, Ctrl-C, SIGTERM, a disk that is full."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from tests.hostile.harness import params, stage, windtunnel, write_params

REPOSITORY = Path(__file__).parents[2]
ENDS = {
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit(3)": "sys.exit(3)",
    "os._exit(0)": "with exit code 0",
    "ctypes.string_at(0)": "by SIGSEGV",
    "time.sleep(100)": "has not answered in 1 s",
}
MODULE = """
import ctypes, os, sys, time
import numpy as np
from torch import nn

{at_import}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        {in_forward}
        return self.linear(x.flatten(1))

def make():
    {in_factory}
    return Net()

def predict(x):
    {in_predict}
    return np.full((len(x), 10), 0.1)

def data():
    {in_data}
    return np.zeros((20, 1, 8, 8), np.float32), np.arange(20) % 10
"""
PLACES = {
    "at_import": {"model": {"source": "function", "function": "mine:predict"}},
    "in_forward": {"model": {"source": "state_dict", "path": "w.pt", "factory": "mine:make"}},
    "in_factory": {"model": {"source": "state_dict", "path": "w.pt", "factory": "mine:make"}},
    "in_predict": {"model": {"source": "function", "function": "mine:predict"}},
    "in_data": {"data": {"source": "function", "function": "mine:data"}},
}


def hostile(project: Path, place: str, code: str, time_limit: float = 1, **changes: object) -> None:
    """A project whose module runs `code` at `place`."""
    (project / "mine.py").write_text(MODULE.format(**{**dict.fromkeys(PLACES, "pass"), place: code}))
    torch.save({f"linear.{key}": value for key, value in nn.Linear(64, 10).state_dict().items()}, project / "w.pt")
    blocks = {key: {**block, "time_limit": time_limit} for key, block in PLACES[place].items()}
    # `check` asks no predict function while an entry cannot run on it, as FGSM cannot.
    attacks = {"fgsm": {"library": "torchattacks", "algorithm": "Square"}} if place == "in_predict" else {}
    write_params(project, params(**{**blocks, "attacks": attacks, **changes}))


@pytest.mark.parametrize("code", [c for c in ENDS])
@pytest.mark.parametrize("place", PLACES)
def test_check_never_ends_with_0_without_having_checked(project, place, code):
    if place == "at_import" and "sleep" in code:
        pytest.skip("an import may take its time")
    hostile(project, place, code)
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert ENDS[code] in ended.line
    assert "fits the model" not in ended.out


@pytest.mark.parametrize("place", ["in_forward", "in_factory", "in_predict"])
def test_a_stage_never_ends_with_0_for_a_model_that_ends_it(project, place):
    hostile(project, place, "sys.exit(0)")
    # `train` asks no predict function: every question to one is counted, and `clean` is the first to ask.
    before, last = (("prepare", "train"), "clean") if place == "in_predict" else (("prepare",), "train")
    assert [stage(name, cwd=project).code for name in before] == [0] * len(before)
    ended = stage(last, cwd=project)
    assert ended.code == 2
    assert "sys.exit(0)" in ended.line


def test_a_model_that_ends_the_process_later_ends_the_stage_with_a_line(project):
    """It passed when it was tried on two samples."""
    hostile(project, "in_forward", "if len(x) > 2: sys.exit(0)")
    assert [stage(name, cwd=project).code for name in ("prepare", "train")] == [0, 0]
    ended = stage("clean", cwd=project)
    assert ended.code == 2
    assert "mine.py, line 14: it called sys.exit(0)" in ended.line


@pytest.mark.parametrize(
    ("place", "key"), [("in_predict", "model.function: mine:predict: the model"), ("in_forward", "model: the model")]
)
def test_a_model_that_hangs_later_ends_the_stage_with_a_line(project, place, key):
    """A schedule would wait for ever. A slow answer is told, and waited for."""
    hostile(project, place, "time.sleep(60 if len(x) > 2 else 0)", time_limit=0.1)
    assert [stage(name, cwd=project).code for name in ("prepare", "train")] == [0, 0]
    ended = stage("clean", cwd=project)
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 2, ended.err
    told, line = ended.err.splitlines()
    assert told == f"windtunnel: {key} has not answered for 0.1 s; it is given 1 s"
    assert f"{key} has not answered in 1 s, 10 times model.time_limit (0.1 s); what is finished is kept" in line


def test_a_model_that_hangs_in_c_and_lets_no_thread_say_so_ends_the_stage_too(project):
    """`PyDLL` keeps the interpreter's lock: nothing of Python's runs until the call returns."""
    hostile(project, "in_forward", "len(x) > 2 and ctypes.PyDLL(None).sleep(60)", time_limit=0.1)
    assert [stage(name, cwd=project).code for name in ("prepare", "train")] == [0, 0]
    ended = stage("clean", cwd=project)
    assert ended.code == 1
    assert ended.err.startswith("Timeout (0:00:02)!")
    assert 'mine.py", line 14 in forward' in ended.err


GENERATORS = """
import time, torch

class Own:
    latent_dim = 4

    def decode(self, latents, classes):
        time.sleep(60 if len(latents) {when} else 0)
        return latents.sum(1).sigmoid().view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
"""


@pytest.mark.parametrize(("when", "ends"), [("> 0", "check"), ("!= 40", "generators")])
def test_a_generative_model_that_hangs_ends_check_and_the_stage(project, when, ends):
    """`check` decodes four codes of each of the ten classes; what hangs at another number is met by the stage."""
    (project / "theirs.py").write_text(GENERATORS.format(when=when))
    given = {"source": "function", "function": "theirs:Own", "time_limit": 0.1}
    write_params(project, params(generators=given, latent={"l": {}}, attacks={}))
    if ends == "check":
        ended = windtunnel("check", cwd=project)
        assert ended.code == 2
        assert "generators: the model has not answered in 0.1 s; generators.time_limit gives it more" in ended.line
        return
    assert windtunnel("check", cwd=project).code == 0
    assert [stage(name, cwd=project).code for name in ("prepare", "train")] == [0, 0]
    ended = stage("generators", cwd=project)
    assert ended.code == 2
    assert "has not answered in 1 s, 10 times generators.time_limit (0.1 s)" in ended.err.splitlines()[-1]


def test_a_slow_model_is_waited_for(project):
    once = "if len(x) > 2 and not vars(self).setdefault('slow', 0): self.slow = 1; time.sleep(1)"
    hostile(project, "in_forward", once, time_limit=0.3)
    ended = [stage(name, cwd=project) for name in ("prepare", "train", "clean")]
    assert [one.code for one in ended] == [0, 0, 0]
    assert "has not answered for 0.3 s; it is given 3 s" in ended[2].line


def test_check_ends_a_model_that_hangs_after_the_samples_it_was_tried_on(project):
    hostile(project, "in_forward", "time.sleep(60 if len(x) > 2 else 0)")
    ended = windtunnel("check", cwd=project)
    assert ended.code == 2
    assert "model: the model has not answered in 1 s; model.time_limit gives it more" in ended.line


def test_more_samples_than_there_are_is_said(project):
    write_params(project, params(data={"source": "digits", "samples": {"n": 1e9}}))
    line = "data.samples.n: 1000000000 are asked for, and there are 540: all of them are taken"
    assert line in " ".join(windtunnel("check", cwd=project).out.split())
    assert stage("prepare", cwd=project).err == f"windtunnel: {line}\n"


def test_an_entry_that_asks_for_more_samples_than_are_assessed_says_so(project):
    attacks = {"fgsm": {"library": "torchattacks", "algorithm": "FGSM", "samples": {"n": 30}}}
    write_params(project, params(attacks=attacks))
    line = "attacks.fgsm.samples.n: 30 are asked for, and there are 20: all of them are taken"
    assert line in " ".join(windtunnel("check", cwd=project).out.split())
    ended = [stage(*words.split(), cwd=project) for words in ("prepare", "train", "clean", "attack fgsm")]
    assert [one.err for one in ended] == ["", "", "", f"windtunnel: {line}\n"]


@pytest.mark.parametrize(
    ("place", "key"), [("in_predict", "model.function: mine:predict"), ("in_forward", "mine.py, line")]
)
def test_a_model_that_raises_later_is_one_line_with_its_own_words(project, place, key):
    hostile(project, place, "if len(x) > 2: raise ConnectionError('api down')")
    assert [stage(name, cwd=project).code for name in ("prepare", "train")] == [0, 0]
    ended = stage("clean", cwd=project)
    assert ended.code == 2
    assert key in ended.line
    assert "ConnectionError: " in ended.line
    assert "api down" in ended.line
    assert "resize" not in ended.line


# --- signals ---

ENDLESS = {
    "data": {"samples": {"n": 60}},
    "attacks": {"a": {"library": "torchattacks", "algorithm": "MIFGSM", "batch_size": 4, "params": {"steps": 500_000}}},
    "corruptions": {"c": {"algorithm": "glass_blur", "upsample": 512, "severities": [5]}},
    "verification": {"v": {"library": "Marabou", "algorithm": "linf-box", "timeout": 100, "budget": {"epsilon": 0.2}}},
}


@pytest.fixture(scope="module")
def long_project(tmp_path_factory) -> Path:
    """A project whose stages up to `clean` have run, and whose assessments take minutes."""
    folder = tmp_path_factory.mktemp("long")
    write_params(folder, params(**ENDLESS))
    assert [stage(name, cwd=folder).code for name in ("prepare", "train", "clean")] == [0, 0, 0]
    return folder


def start(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        start_new_session=True, env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}", **env},
        # A shell starts what is in the background with Ctrl-C switched off, and the tests may be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_until_it_handles_signals(process: subprocess.Popen[str]) -> None:
    """Until SIGTERM, which Python leaves alone, has a handler; what a stage forks off holds signals back until it has its own."""
    for _ in range(12_000):
        assert process.poll() is None, process.stderr.read()
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught, blocked = (int(status.partition(f"{word}:")[2].split()[0], 16) for word in ("SigCgt", "SigBlk"))
        if (caught & ~blocked) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError("it did not begin to handle signals")


def wait_until_it_works(process: subprocess.Popen[str], children: int) -> None:
    """Until it has imported everything: it has had CPU time for the work, and its processes run."""
    parent = psutil.Process(process.pid)  # its first child works
    for _ in range(12_000):
        assert process.poll() is None, process.stderr.read()
        started = parent.children(recursive=True)
        if sum(sum(one.cpu_times()[:2]) for one in started) > 6 or (children and len(started) > children):
            return
        time.sleep(0.1)
    raise AssertionError("it did not begin to work")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "children", "number"),
    [
        ("attack a", 0, signal.SIGTERM),
        ("corrupt c", 2, signal.SIGINT),
        ("corrupt c", 2, signal.SIGTERM),
        ("verify v", 3, signal.SIGINT),
    ],
)
def test_an_interrupted_stage_says_one_line_and_leaves_nobody_behind(long_project, name, children, number):
    process = start(long_project, *f"stages.{name}".split())
    wait_until_it_works(process, children)
    time.sleep(0.5)
    everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    # A terminal sends Ctrl-C to all of them; a scheduler sends SIGTERM to the one it started.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert [line for line in err.splitlines() if line] == [
        "windtunnel: interrupted; what is finished is kept, `dvc repro` continues"
    ]
    assert psutil.wait_procs(everybody, timeout=60)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("stages.attack", "a"), ("windtunnel", "check"), ("stages.corrupt", "c")])
def test_ctrl_c_while_it_imports_is_one_line_too(long_project, words):
    for delay in (0.0, 0.3, 1.0):
        process = start(long_project, *words)
        wait_until_it_handles_signals(process)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert err.count("interrupted") == 1


@pytest.mark.parametrize(
    "words",
    [("stages.attack", "a"), ("stages.clean",), ("windtunnel", "check"), ("windtunnel", "stage", "attack", "a")],
)
def test_signals_are_handled_before_anything_slow_is_imported(project, words):
    """Until then Ctrl-C is a traceback, so only the standard library and click come before."""
    code = f"""
import os, runpy, signal, sys
before = set(sys.modules)
def tell(number, handler):
    names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
    line = " ".join(sorted(names - sys.stdlib_module_names)) + "\\n"
    os.write(1, line.encode())  # at once: of a stage two processes write
    os._exit(0)
signal.signal = tell
sys.argv = {list(words)!r}
runpy.run_module({words[0]!r}, run_name="__main__", alter_sys=True)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=project, text=True, capture_output=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) <= {"windtunnel", "stages", "click"}


def test_the_line_of_an_interruption_is_said_where_a_library_speaks_to_nobody():
    """While torch.export is imported its output is put aside, and an interruption of an import ends the process at once."""
    code = """
import contextlib, io
from windtunnel.runtime.shutdown import end_interrupted
with contextlib.redirect_stderr(io.StringIO()):
    end_interrupted(2)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.strip()) == (
        130, "windtunnel: interrupted; what is finished is kept, `dvc repro` continues",
    )  # fmt: skip


@pytest.mark.slow
def test_an_interruption_that_something_swallows_ends_the_run_all_the_same(project):
    hostile(
        project,
        "in_data",
        "\n    while True:\n        try:\n            time.sleep(60)\n        except BaseException:\n            pass",
    )
    assert stage("resolve", cwd=project).code == 0
    process = start(project, "stages.prepare")
    time.sleep(5)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.count("interrupted") == 1


@pytest.mark.parametrize(
    ("place", "then"),
    [("in_data", "raise RecursionError('numpy')"), ("in_data", "sys.exit(3)"), ("at_import", "os._exit(9)")],
)
def test_an_interruption_that_something_makes_another_end_of_is_an_interruption(project, place, then):
    """torch does while it imports: numpy, whose import was cut short, is missing for it and fails later, or its C++ code aborts."""
    lines = [
        "import signal",
        "try: os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
        "except BaseException: pass",
        then,
    ]
    indented = "" if place == "at_import" else "    "
    hostile(project, place, f"\n{indented}".join(["", *lines]), data={"source": "function", "function": "mine:data"})
    assert stage("resolve", cwd=project).code == 0
    ended = stage("prepare", cwd=project)
    assert ended.code == 130, ended.err
    assert ended.line == "windtunnel: interrupted; what is finished is kept, `dvc repro` continues"


@pytest.mark.slow
def test_a_stage_does_not_outlive_dvc(long_project):
    """DVC runs a stage through a shell; killed with SIGKILL it cannot say a word to it."""
    words = f"{sys.executable} -m stages.attack a; echo"
    dvc = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({words!r}, shell=True)"], cwd=long_project,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}", "DVC_STAGE": "attack@a"},
    )  # fmt: skip
    time.sleep(4)
    everybody = psutil.Process(dvc.pid).children(recursive=True)
    assert everybody
    dvc.kill()
    dvc.wait()
    assert psutil.wait_procs(everybody, timeout=60)[1] == []


# --- disks ---


def test_a_file_that_cannot_be_written_is_one_line_and_the_one_before_is_whole(project):
    """A limit on the size of files cuts a write as a full disk does: in the middle."""
    write_params(project, params())
    assert [stage(name, cwd=project).code for name in ("prepare", "train", "clean")] == [0, 0, 0]
    before = {path: path.read_bytes() for path in sorted((project / "reports").rglob("*")) if path.is_file()}
    for name in ("clean", "train", "prepare"):  # backwards: a stage deletes what it makes
        ended = stage(name, cwd=project, file_size=2048)
        assert ended.code == 30
        assert "cannot be written" in ended.line or "File too large" in ended.line
    for path in before:
        if path.is_file():  # what is made again is deleted first
            assert path.read_bytes() == before[path] or path.suffix == ".json"
    assert not [path for path in (project / "reports").rglob("*") if "partial" in path.name]


def test_reports_that_is_a_file_is_one_line(project):
    write_params(project, params())
    (project / "reports").write_text("")
    ended = stage("prepare", cwd=project)
    assert ended.code == 30
    assert "reports" in ended.line
