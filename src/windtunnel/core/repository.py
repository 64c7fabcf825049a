"""Find the repository of a project, which may be a folder of a larger repository, whose data, weights and modules it uses."""

from __future__ import annotations

from pathlib import Path


def repository(project: Path | None = None) -> Path | None:
    """Return the root of the git repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".git")


def dvc_root(project: Path | None = None) -> Path | None:
    """Return the root of DVC's repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".dvc")


def asked_by(root: Path) -> Path:
    """Return the root of the git repository that asked for a DVC experiment (`--queue`, `--temp`) whose clone has the root `root`.

    Such a clone lies under .dvc/tmp/exps of DVC's repository, and is gone afterwards. `root` itself where it is none.
    """
    parts = root.parts
    for i in range(len(parts) - 2):
        if parts[i : i + 3] == (".dvc", "tmp", "exps"):
            return repository(Path(*parts[:i])) or Path(*parts[:i])
    return root


def asking_project() -> Path:
    """Return the current directory, absolute; in an experiment of DVC the same folder of the repository that started it."""
    current = Path.cwd()
    root = repository(current)
    return asked_by(root) / current.relative_to(root) if root else current


def code_folders(project: Path | None = None) -> list[Path]:
    """Return the folders that hold the user's own modules: beside params.yaml, at the root of the repository, and in its src/."""
    current = (project or Path()).absolute()
    root = repository(current)
    return list(dict.fromkeys([current, *([root, root / "src"] if root else [])]))


def _above(project: Path | None, mark: str) -> Path | None:
    current = (project or Path()).absolute()
    return next((folder for folder in (current, *current.parents) if (folder / mark).exists()), None)
