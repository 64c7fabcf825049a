"""Which MLflow store a project uses, and how to reach it."""

from __future__ import annotations

import logging
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from windtunnel.boundary.mlflow_moved import follow_move
from windtunnel.boundary.sqlite_store import whole_store
from windtunnel.core.repository import asked_by

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"


def main_root() -> Path:
    """The project's folder in the main work tree: runs from `dvc exp run --temp` and `--queue` must not log into one that goes away.

    A project that is a folder of a repository keeps its store in that folder.
    """
    current = Path.cwd()
    done = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return current
    common, _, prefix = done.stdout.strip("\n").partition("\n")
    return asked_by(Path(common).parent.resolve()) / prefix


def tracking_uri(configured: str | None) -> str:
    """MLFLOW_TRACKING_URI, else `tracking.uri`, else SQLite in the main work tree by its absolute path."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or configured
    if not uri:
        return f"{_SQLITE}{main_root() / 'mlflow.db'}"
    if uri.startswith(_SQLITE) and not uri.startswith(f"{_SQLITE}/"):
        return f"{_SQLITE}{main_root() / uri.removeprefix(_SQLITE)}"
    return uri


def connect(uri: str) -> MlflowClient:
    """A client whose calls fail within seconds, not minutes, where the server is dead.

    Raises UserError where the project's own store was copied without its files.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # MLflow prints the address of a run that ends, with the credentials in it.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # A run id in the environment would make MLflow resume that run and mix two states.
    os.environ.pop("MLFLOW_RUN_ID", None)
    follow_move(uri, main_root())
    import mlflow

    for name in ("mlflow.store.db.utils", "alembic"):  # fifty lines about tables
        logging.getLogger(name).setLevel(logging.WARNING)
    if uri.startswith(_SQLITE):
        whole_store(Path(uri.removeprefix(_SQLITE)))
    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(tracking_uri=uri)


def is_answering(root: str) -> bool:
    """Return True if an MLflow server answers at the address `root`, with an error too."""
    try:
        with urllib.request.urlopen(f"{root}/health", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def store_lock() -> FileLock:
    """Held by whoever writes: first use of a SQLite store, or of an experiment's name, must not happen twice at once.

    A file in the main work tree, so it keeps processes of one machine apart; machines that share a server it does not.
    """
    folder = main_root() / ".cache" / "windtunnel"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(str(folder / "tracking.lock"))
