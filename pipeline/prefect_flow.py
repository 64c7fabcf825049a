"""The retraining as a Prefect flow: `windtunnel retrain` on a schedule, its summary as an artifact of the flow run.

Prefect's server needs an older FastAPI than requirements.lock brings, so give it an environment of its own; the command
runs in the project's .venv where there is one:

python -m venv /srv/prefect && /srv/prefect/bin/pip install 'prefect>=3' 'fastapi<0.150'
/srv/prefect/bin/python -m pipeline.prefect_flow                        # once, now
/srv/prefect/bin/python -m pipeline.prefect_flow --cron '0 3 * * *'     # serve it, every night at three
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed, Failed, State

# Exit codes of `windtunnel retrain` that are no failure of the flow: promoted or nothing to do, and not promoted.
ENDINGS = {0: "Up to date", 10: "Not promoted"}


def retrain_project(project: str = ".") -> State[None]:
    """Run the command in `project`; the flow fails where the evaluation is not sound or the infrastructure failed."""
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.md"
        own = Path(project).resolve() / ".venv" / "bin" / "python"
        python = str(own) if own.is_file() else sys.executable
        command = [python, "-m", "windtunnel", "retrain", "--summary", str(summary)]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        if summary.is_file():
            create_markdown_artifact(summary.read_text(encoding="utf-8"), key="windtunnel-retrain")
    logger = get_run_logger()
    logger.info(done.stdout)
    if done.stderr:
        logger.warning(done.stderr)
    if done.returncode in ENDINGS:
        return Completed(message=ENDINGS[done.returncode])
    line = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return Failed(message=f"exit code {done.returncode}: {line}")


retrain = flow(name="windtunnel-retrain")(retrain_project)


def main() -> None:
    """Run once, or serve on a cron schedule. One at a time: the command's own lock refuses a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cron", help="serve on this schedule instead of running once")
    arguments = parser.parse_args()
    if arguments.cron:
        retrain.serve(name="nightly", cron=arguments.cron, limit=1)
    else:
        retrain()


if __name__ == "__main__":
    main()
