"""Where a project stands: it may be a folder of a larger repository, whose data, weights and modules it uses."""

from __future__ import annotations

from pathlib import Path


def repository(project: Path | None = None) -> Path | None:
    """The root of the git repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".git")


def dvc_root(project: Path | None = None) -> Path | None:
    """The root of DVC's repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".dvc")


def code_folders(project: Path | None = None) -> list[Path]:
    """Where the user's own modules are looked for: beside params.yaml, at the root of the repository, and in its src/."""
    here = (project or Path()).absolute()
    root = repository(here)
    return list(dict.fromkeys([here, *([root, root / "src"] if root else [])]))


def _above(project: Path | None, mark: str) -> Path | None:
    here = (project or Path()).absolute()
    return next((folder for folder in (here, *here.parents) if (folder / mark).exists()), None)
