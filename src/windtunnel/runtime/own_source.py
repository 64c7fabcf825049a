"""Whose code runs: a project that has windtunnel's source must be run by that source, which DVC hashes."""

from pathlib import Path

import windtunnel
from windtunnel.core.errors import UserError
from windtunnel.records.files import file_digest


def require_own_source(project: Path | None = None) -> None:
    """Raise UserError where the project (the current directory) has src/windtunnel and other code is running.

    One environment and two clones: the environment's code would make the numbers, and the clone's would be recorded. A copy
    that is the same file for file is no other code: DVC runs queued experiments in one.
    """
    source = (project or Path()) / "src" / "windtunnel" / "__init__.py"
    running = Path(str(windtunnel.__file__))
    if source.is_file() and source.resolve() != running.resolve() and _code(source.parent) != _code(running.parent):
        raise UserError(
            f"{source.parent} is this project's source, but {running.parent} is what runs; install this one "
            f"(pip install --no-deps --editable .), or set PYTHONPATH={source.parent.parent.resolve()}"
        )


def _code(package: Path) -> dict[str, str]:
    return {path.relative_to(package).as_posix(): file_digest(path) for path in sorted(package.rglob("*.py"))}
