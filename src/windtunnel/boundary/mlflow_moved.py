"""A local store that moved or was copied with its project: MLflow keeps absolute addresses, so they are brought along."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from windtunnel.core.errors import UserError

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
    here = (root.resolve() / ARTIFACTS).as_uri()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            locations = [str(row[0]) for row in database.execute("select distinct artifact_location from experiments")]
        except sqlite3.Error:
            return  # not initialised yet: MLflow does that, with addresses of this place
        elsewhere = [a for a in locations if a.startswith("file:///") and a.endswith(f"/{ARTIFACTS}") and a != here]
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
                    (here, len(address) + 1, address, address),
                )
        database.execute("commit")
