"""The MLflow store of a project: its address, how to reach it, and a SQLite store that is whole or not there.

MLflow 3.17 makes a store by some fifty migrations in the file itself; after a kill in one of them every later start says
`table _alembic_tmp_... already exists`.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.core.references import asked_by
from windtunnel.runtime.credentials import reason_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


_SQLITE = "sqlite:///"
_SEEN: set[Path] = set()  # stores that this process has found whole
ARTIFACTS = "mlartifacts"  # beside the database, in the project's root
# Where MLflow 3 keeps addresses of artifacts.
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


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


def follow_move(uri: str, root: Path) -> None:
    """If the SQLite store of the project in `root` has artifact addresses of another place, give it those of this one.

    Only addresses that a project of ours made, `<root>/mlartifacts`; others are the user's own. Raises UserError where the
    database was copied without the files, which would then be written and looked for in the other project.
    """
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or not path.is_file() or path.resolve().parent != root.resolve():
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


def whole_store(path: Path) -> None:
    """Make the store where there is none, and recover one that a kill left half made.

    One without a run is made again; one with runs keeps them: what the killed migration left is taken away from a copy,
    the migrations go on there, and the copy takes the store's place once they are through. The damaged file stays beside
    it as `<name>.damaged`. Raises InfrastructureError, in one line, where that fails too.
    """
    _require_writable(path)
    if path in _SEEN or _is_whole(path):
        _SEEN.add(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if _is_whole(path):
            return
        partial = path.with_name(f"{path.name}.partial")
        for stale in path.parent.glob(f"{partial.name}*"):
            stale.unlink()
        damaged = path.is_file() and path.stat().st_size > 0
        if damaged and _has_runs(path):
            _copy_without_leftovers(path, partial)
        try:
            _migrate(partial)
        except Exception as error:  # SQLAlchemy, alembic and MLflow raise what they like
            raise InfrastructureError(
                f"tracking: {path} was damaged by a kill and cannot be recovered ({type(error).__name__}: {reason_of(error)}); move it "
                f"away, and windtunnel track makes a new one and logs the last run again"
            ) from error
        if damaged:
            _set_aside(path)
        os.replace(partial, path)


def _require_writable(path: Path) -> None:
    """Raise InfrastructureError where the store cannot be written; MLflow would try again for minutes."""
    try:
        if path.exists():
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=0)) as database:
                database.execute("begin immediate")
                database.execute("rollback")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):  # where SQLite keeps its journal
            pass
    except sqlite3.DatabaseError as error:
        if any(
            word in str(error) for word in ("readonly", "unable to open")
        ):  # what is locked or damaged is handled later
            raise InfrastructureError(f"tracking: {path}: cannot be written ({error})") from error
    except OSError as error:
        raise InfrastructureError(f"tracking: {path}: cannot be written ({error.strerror})") from error


def _is_whole(path: Path) -> bool:
    """Return True if no table is half made, and every migration is through; of a store with runs, which an older MLflow may have

    made, the latter is left to MLflow's own words and `mlflow db upgrade`.
    """
    if not path.is_file() or not path.stat().st_size:
        return False
    from mlflow.store.db.utils import _get_latest_schema_revision

    try:
        with closing(_read_only(path)) as database:
            names = _tables(database)
            if _leftovers(names) or not names >= {"alembic_version", "experiments", "runs"}:
                return False
            revisions = [row[0] for row in database.execute("select version_num from alembic_version")]
            count = database.execute("select count(*) from experiments").fetchone()[0]
        return bool(revisions == [_get_latest_schema_revision()] and count) or _has_runs(path)
    except sqlite3.OperationalError as error:
        return "locked" in str(error)  # somebody works with it
    except sqlite3.DatabaseError:
        return False


def _tables(database: sqlite3.Connection) -> set[str]:
    return {str(row[0]) for row in database.execute("select name from sqlite_master where type = 'table'")}


def _leftovers(tables: set[str]) -> list[str]:
    """Return the copies that a migration makes of a table and renames at its end."""
    return sorted(name for name in tables if name.startswith("_alembic_tmp_"))


def _has_runs(path: Path) -> bool:
    """Return True if there is something in it to lose; where even that cannot be read, there may be."""
    try:
        with closing(_read_only(path)) as database:
            return any(
                database.execute(f"select count(*) from {name}").fetchone()[0]
                for name in _tables(database) & {"runs", "_alembic_tmp_runs", "registered_models"}
            )
    except sqlite3.DatabaseError:
        return True


def _copy_without_leftovers(path: Path, partial: Path) -> None:
    """Make a copy; drop each table that a killed migration was making, or put it in the place of a lost one."""
    shutil.copyfile(path, partial)
    for side in ("-wal", "-journal"):  # what SQLite has yet to finish belongs to the file
        if Path(f"{path}{side}").is_file():
            shutil.copyfile(f"{path}{side}", f"{partial}{side}")
    with closing(sqlite3.connect(partial)) as database:
        names = _tables(database)
        for table in _leftovers(names):
            original = table.removeprefix("_alembic_tmp_")
            if original in names:
                database.execute(f'drop table "{table}"')
            else:
                database.execute(f'alter table "{table}" rename to "{original}"')
        database.commit()


def _migrate(path: Path) -> None:
    """Make all tables of MLflow in `path`, or the ones that are lacking."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    engine = create_sqlalchemy_engine(f"{_SQLITE}{path}")
    _initialize_tables(engine)
    engine.dispose()
    # Makes the default experiment, whose place of artifacts nothing of ours uses.
    SqlAlchemyStore(f"{_SQLITE}{path}", (path.parent / ARTIFACTS).as_uri()).engine.dispose()


def _set_aside(path: Path) -> None:
    for side in ("", "-wal", "-shm", "-journal"):
        if Path(f"{path}{side}").exists():
            os.replace(f"{path}{side}", f"{path}.damaged{side}")
    print(f"windtunnel: {path} was damaged by a kill and is recovered; as it was: {path}.damaged", file=sys.stderr)


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)
