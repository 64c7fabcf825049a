"""`make lock`: what is installed, as requirements.lock (what a run uses) and requirements-dev.lock (the extra `dev`).

A distribution is of the run where the package, or one of requirements-nodeps.lock, needs it; else where an extra that a
run can have does; else it is a tool.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RUN, TOOLS, NO_DEPENDENCIES = (
    Path(name) for name in ("requirements.lock", "requirements-dev.lock", "requirements-nodeps.lock")
)
PACKAGE = "windtunnel"
EXTRAS = ("", "pipeline", "postgres", "vnnlib")
# auto-LiRPA declares pytest, and auto-LiRPA torchvision: nothing of them that runs here imports it.
NOT_OF_THE_RUN = frozenset({"pytest", "torchvision"})


def main() -> None:
    """Write both files, each with the comments that stand at its head."""
    apart = {canonicalize_name(Requirement(line).name) for line in _lines(NO_DEPENDENCIES)}
    of_the_run = needed([PACKAGE, *apart], EXTRAS)
    # The markers that a line has, such as that there is no maraboupy for Python 3.12, are the maintainer's.
    markers = {
        canonicalize_name(found.name): f"; {found.marker}"
        for file in (RUN, TOOLS)
        for found in map(Requirement, _lines(file))
        if found.marker
    }
    lines: dict[Path, list[str]] = {RUN: [], TOOLS: []}
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.name)
        if name in {PACKAGE, "pip", "setuptools", "wheel", *apart}:
            continue
        line = f"{dist.name}=={dist.version.partition('+')[0]}{markers.get(name, '')}"
        lines[RUN if name in of_the_run else TOOLS].append(line)
    for file, found in lines.items():
        head = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        file.write_text(
            "\n".join([*head, *sorted(set(found), key=lambda line: line.partition("==")[0].lower())]) + "\n",
            encoding="utf-8",
        )


def needed(names: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Return the distributions that `names` (with `extras`) need, however indirectly; those that are not installed count too."""
    seen: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(name), extra) for name in names for extra in extras]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen or name in NOT_OF_THE_RUN:
            continue
        seen.add((name, extra))
        for requirement in _requirements(name):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(requirement.name), e) for e in ("", *requirement.extras)]
    return {name for name, _ in seen}


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line


if __name__ == "__main__":
    main()
