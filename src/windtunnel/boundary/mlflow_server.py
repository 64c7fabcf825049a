"""Which MLflow store a project uses, and how to reach it."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from windtunnel.boundary.sqlite_store import whole_store
from windtunnel.core.errors import UserError
from windtunnel.core.repository import asked_by

if TYPE_CHECKING:
    from mlflow import MlflowClient


_SQLITE = "sqlite:///"


def main_root() -> Path:
    """Return the project's folder in the main work tree: runs from `dvc exp run --temp` and `--queue` must not log into one that goes away.

    A project that is a folder of a repository keeps its store in that folder.
    """
    current = Path.cwd()
    done = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix"],
        capture_output=True,
        text=True,
        check=False,
    )
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
    """Return a client whose calls fail within seconds, not minutes, where the server is dead.

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


ARTIFACTS = "mlartifacts"  # beside the database, in the project's root
# Where MLflow 3 keeps addresses of artifacts.
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def follow_move(uri: str, root: Path) -> None:
    """If the SQLite store of the project in `root` has artifact addresses of another place, give it those of this one.

    Only addresses that a project of ours made, `<root>/mlartifacts`; others are the user's own. Raises UserError where the
    database was copied without the files, which would then be written and looked for in the other project.
    """
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or not path.is_file() or path.resolve().parent != root.resolve():
        return
    own_address = (root.resolve() / ARTIFACTS).as_uri()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            locations = [str(row[0]) for row in database.execute("select distinct artifact_location from experiments")]
        except sqlite3.Error:
            return  # not initialised yet: MLflow does that, with addresses of this place
        elsewhere = [
            a for a in locations if a.startswith("file:///") and a.endswith(f"/{ARTIFACTS}") and a != own_address
        ]
        if not elsewhere:
            return
        old = Path(elsewhere[0].removeprefix("file://"))
        if old.is_dir() and not (root / ARTIFACTS).is_dir():
            raise UserError(
                f"tracking: {path} was copied without its files, which are in {old}; copy that folder to {root / ARTIFACTS}, "
                f"or delete {path} to start a new store here"
            )
        database.execute("begin immediate")
        for address in elsewhere:
            for table, column in _COLUMNS:
                database.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) where {column} = ? or {column} like ? || '/%'",
                    (own_address, len(address) + 1, address, address),
                )
        database.execute("commit")
