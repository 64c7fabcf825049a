"""Compute the digest of a retraining's dependencies: code and params as committed, and the samples as `prepare` made them."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence

from windtunnel.core.errors import UserError
from windtunnel.params.schema import Params
from windtunnel.records.files import file_digest
from windtunnel.records.layout import DATA, MODEL

# Committed, but without a say in any result. dvc.lock is what a run writes.
_NO_SAY = (":!dvc.lock", ":!docs", ":!tests", ":!benchmarks", ":!*.md")
# Data that is part of the code; all else lies outside and may have changed.
_BUILT_IN = "digits"


def changed_files() -> list[str]:
    """Tracked files that differ from the last commit, other than those without a say. Raises UserError outside git."""
    return _git("diff", "--name-only", "HEAD", "--", ".", *_NO_SAY).splitlines()


def require_committed(what: str) -> None:
    """Raise UserError where the work tree is dirty: nobody could make such a model again."""
    if not _git("rev-parse", "--is-inside-work-tree"):
        raise UserError(
            f"{what}: this is no git repository; a model that is to be promoted needs a commit it can be made from again"
        )
    files = changed_files()
    if files:
        named = ", ".join(files[:5]) + (", ..." if len(files) > 5 else "")
        raise UserError(
            f"{what}: the work tree has changes that are not committed ({named}); commit them, or give --allow-dirty"
        )


def stages_to_force(params: Params) -> list[str]:
    """Return the stages whose inputs lie outside the repository, where only running them again tells what is there now."""
    stages = ["prepare"] if params.data.source != _BUILT_IN else []
    return [*stages, "train"] if params.model.source != "train" else stages


def inputs_digest(params: Params) -> str:
    """sha256 over the committed code and params, uncommitted changes to them, the samples and an imported model."""
    digest = hashlib.sha256(_git("diff", "HEAD", "--", ".", *_NO_SAY).encode())
    digest.update("\n".join(_tracked()).encode())
    folders = [DATA] if params.model.source == "train" else [DATA, MODEL]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.as_posix()} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def _tracked() -> Sequence[str]:
    """`mode blob stage path` of every committed file with a say."""
    return _git("ls-files", "--stage", "--", ".", *_NO_SAY).splitlines()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        raise UserError(f"git: {reason}; a model that is to be promoted needs a commit it can be made from again")
    return done.stdout
