"""Run an example: `python examples/run.py binary-http`.

It copies the example into a folder outside git and DVC of this checkout (examples/runs by default), lets its prepare.py make or find
data and weights, adds what `windtunnel init` adds to any params.yaml, and runs the pipeline. A second run computes only what changed.
An example with several params.yaml ends with `windtunnel compare`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
WINDTUNNEL = (sys.executable, "-m", "windtunnel")


def names() -> list[str]:
    """Return the names of the examples."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/prepare.py"))


def projects_of(folder: Path) -> list[Path]:
    """Return the folders of an example that hold a params.yaml: one, or several that are compared with the first."""
    projects = sorted(path.parent for path in folder.glob("*/params.yaml"))
    # The network of standard training is what others are compared with.
    return sorted(projects, key=lambda project: project.name != "standard")


def call(command: Sequence[str], folder: Path, *, quiet: bool = False) -> None:
    """Run a command in `folder`; where it fails, end with its exit code, since it has said why on stderr."""
    done = subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL if quiet else None)
    if done.returncode:
        raise SystemExit(done.returncode)


def environment() -> dict[str, str]:
    """Return the variables for the commands: where data may lie that no package brings, and no statistics of DVC."""
    shared = EXAMPLES.parents[1] / "shared"
    return {"WINDTUNNEL_SHARED": str(shared), "OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1", **os.environ}


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Run the example's server.py, where it has one, until the assessment is over."""
    if not (folder / "server.py").is_file():
        yield
        return
    command = [sys.executable, "server.py"]
    server = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout is None or not server.stdout.readline():
            raise SystemExit("server.py ended before it was ready")
        yield
    finally:
        server.terminate()
        server.wait()


def copy_example(name: str, target: Path) -> Path:
    """Copy an example into `target` as a repository of its own, and return its folder there."""
    folder = target / name
    shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if not (folder / ".dvc").is_dir():
        call(["git", "init", "--quiet"], folder)
        call([sys.executable, "-m", "dvc", "init", "--quiet"], folder)
    return folder


def assess(folder: Path, stages: Sequence[str] = ()) -> list[Path]:
    """Assess a prepared copy of an example and return the folders of its reports. stages: those to reach; all where empty."""
    projects = projects_of(folder)
    with served(folder):
        for project in projects:
            call([*WINDTUNNEL, "init", "--yes", "--folder", project.name], project.parent, quiet=True)
            call([*WINDTUNNEL, "repro", *stages], project)
    if len(projects) > 1:
        call([*WINDTUNNEL, "compare", *(project.name for project in projects), "--html", "compare.html"], folder)
    return [project / "reports" for project in projects]


def main() -> None:
    """Run the example that the command line names."""
    parser = argparse.ArgumentParser(description="Run an example; other options are of its prepare.py.")
    parser.add_argument("name", choices=names(), metavar="NAME", help=", ".join(names()))
    parser.add_argument("--folder", type=Path, default=EXAMPLES / "runs", help="where (default: examples/runs)")
    arguments, of_prepare = parser.parse_known_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    folder = copy_example(arguments.name, arguments.folder.resolve())
    call([sys.executable, "prepare.py", *of_prepare], folder)
    for reports in assess(folder):
        call([*WINDTUNNEL, "show"], reports.parent)
        print(f"the report: {reports / 'report.html'}")
    print(f"{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
