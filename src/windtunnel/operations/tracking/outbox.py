"""States that could not be delivered yet, kept whole so that they can be after the work tree moved on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from windtunnel.core.errors import UserError
from windtunnel.core.files import read_json, write_json
from windtunnel.inputs.mlflow_server import main_root
from windtunnel.operations.tracking.state import State, read_state

# What a state is made of.
_KEPT = ("reports", "params.yaml", "dvc.lock")
_MANIFEST = "state.json"


def outbox() -> Path:
    """Where undelivered states wait, in the main work tree."""
    return main_root() / ".cache" / "windtunnel" / "outbox"


def waiting() -> list[Path]:
    """The folders of the states that wait, the oldest first."""
    # A kill while keeping a state leaves a .partial folder; only whole ones are delivered.
    manifests = [manifest for manifest in outbox().glob(f"*/{_MANIFEST}") if manifest.parent.suffix != ".partial"]
    return [manifest.parent for manifest in sorted(manifests, key=lambda manifest: manifest.stat().st_mtime)]


def keep(state: State, origin: Mapping[str, str]) -> None:
    """Copy what the state in the current directory is made of, without tensors unless they are to be uploaded."""
    target = outbox() / state.digest
    if target.is_dir():
        return
    ignore = shutil.ignore_patterns() if state.log_tensors else shutil.ignore_patterns("*.pt", "generators")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in _KEPT:
        source = Path(name)
        if source.is_dir():
            shutil.copytree(source, partial / name, ignore=ignore)
        elif source.is_file():
            partial.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial / name)
    children = {child.name: child.digest for child in state.children}
    manifest = {"digest": state.digest, "children": children, "origin": dict(origin), "kept": time.time()}
    write_json(manifest, partial / _MANIFEST)
    partial.rename(target)


@contextmanager
def kept(folder: Path) -> Iterator[tuple[State, Mapping[str, str]]]:
    """(the state, its origin) of a folder that `keep` made, as the current directory; forgotten unless the body raises.

    The digests were taken while the tensors were at hand. Raises UserError where the folder is damaged.
    """
    manifest = read_json(folder / _MANIFEST)
    blocks = [manifest.get(key) for key in ("children", "origin")] if isinstance(manifest, dict) else []
    children, origin = blocks if len(blocks) == 2 else (None, None)
    if not isinstance(manifest, dict) or not isinstance(children, dict) or not isinstance(origin, dict):
        raise UserError(f"{folder / _MANIFEST}: not the manifest of a kept state")
    here = Path.cwd()
    os.chdir(folder)
    try:
        state = read_state(tensors=False)
        if missing := [child.name for child in state.children if child.name not in children]:
            raise UserError(f"{folder / _MANIFEST}: has no digest of {', '.join(missing)}")
        digest = str(manifest["digest"])
        yield (
            replace(
                state,
                digest=digest,
                children=[replace(child, digest=str(children[child.name])) for child in state.children],
                tags={**state.tags, "windtunnel.state": digest},
            ),
            {key: str(value) for key, value in origin.items()},
        )
    finally:
        os.chdir(here)
    shutil.rmtree(folder)
