"""A tracking server of MLflow's as a process, for tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(answers, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not answers():
        assert time.monotonic() < end, "did not come up"
        time.sleep(0.2)


class Server:
    """`mlflow server` with artifacts behind it, in the folder or at `destination`; `kill` is what a power cut does."""

    def __init__(
        self, database: str, artifacts: Path, destination: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.database, self.artifacts, self.port = database, artifacts, free_port()
        self.destination, self.environment = destination or str(artifacts), environment or {}
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        # SQLAlchemy 2.1 takes a plain postgresql:// for psycopg 3; MLflow's own choice is psycopg2.
        database = self.database.replace("postgresql://", "postgresql+psycopg2://")
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--workers", "1"]
        command += ["--artifacts-destination", self.destination, "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.artifacts / "server.log").open("w") as log:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_until(self._healthy)

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _healthy(self) -> bool:
        assert self.process.poll() is None, (self.artifacts / "server.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
