"""A preloaded command ends, prints and imports as the process that Python would have started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.preloaded import preloaded_commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROBE = """
import atexit, os, sys
import own

atexit.register(print, "at the end")
print(sys.argv, os.getcwd(), os.environ["WORD"], own.__file__, __name__, input())
print("imported:", sorted({"windtunnel", "own"} & {*sys.modules}), sys.path[:2], file=sys.stderr)
sys.stdout.flush()
if len(sys.argv) > 1:
    exec(sys.argv[1])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Run the probe and return its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "stages").mkdir()
    (folder / "stages" / "probe.py").write_text(PROBE)
    (folder / "source").mkdir()
    (folder / "source" / "own.py").touch()

    def run(path: str, *words: str) -> tuple[int, str, str]:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder / "source"), "WORD": "ö"}
        command = ["python", "-m", "stages.probe", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, input="asked\n", capture_output=True, text=True, check=False
        )
        lines = done.stderr.splitlines()
        # Of a traceback the last line: the others name the modules that start the command.
        return done.returncode, done.stdout, "\n".join(lines[:1] + lines[-1:])

    return run


@pytest.mark.parametrize(
    "end", ["", "sys.exit(7)", "sys.exit('refused')", "1 / 0", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)"]
)
def test_it_ends_and_prints_as_a_process_of_its_own(ended, end):
    real = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = [end] if end else []
    expected = ended(real, *words)
    assert "imported: ['own']" in expected[2]
    assert ended(f"{preloaded_commands()}{os.pathsep}{real}", *words) == expected
