"""Add stronger attacks for flagged sanity checks to params.yaml and run them on the surviving samples."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.boundary.params_file import params_text
from windtunnel.boundary.text import edit_yaml, parse_map, yaml_text
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.references import dvc_root
from windtunnel.records.artifacts import read_artifacts
from windtunnel.records.files import parse_own_json, replacing
from windtunnel.records.layout import PARAMS_FILE, ROBUSTNESS


@dataclass(frozen=True, slots=True)
class Strengthened:
    """Result of an added entry: it broke `broken` of the `left` samples that the attacks before it had left."""

    broken: int
    left: int


def lines_of(entries: Mapping[str, Mapping[str, object]]) -> str:
    """Return the block to add under `attacks` of params.yaml."""
    return _as_yaml({"attacks": {name: dict(entry) for name, entry in entries.items()}})


def add_to(path: Path, entries: Mapping[str, Mapping[str, object]]) -> None:
    """Add the entries under `attacks`, keeping the file's comments and order.

    Raises UserError, and writes nothing, where the text would say more than that: a block that is an alias (*) of `attacks`
    changes with it.
    """
    before = params_text(path)
    # Without aliases, each block changes alone.
    settings: Any = _plain(parse_map(before, str(path)))
    content = edit_yaml(before, str(path))
    for blocks in (settings, content):
        if blocks.get("attacks") is None:
            blocks["attacks"] = {}
        blocks["attacks"].update({name: dict(entry) for name, entry in entries.items()})
    text = _as_yaml(content)
    if _plain(parse_map(text, str(path))) != _plain(settings):
        raise UserError(
            f"{path}: an entry that is written as an alias (*) of another cannot be changed alone; write it out, or "
            f"take the other's keys over with <<"
        )
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


_STAGE = ("-m", "windtunnel", "stage")


def run_entries(names: Iterable[str]) -> Iterator[Strengthened | UserError]:
    """Run entries of params.yaml one after another, through DVC where the project has it, so that results are cached.

    An entry that fails is its error, and the others run. Raises UserError where params.yaml cannot be resolved.
    """
    _run([*_STAGE, "resolve"], PARAMS_FILE.name)
    dvc = dvc_root() is not None
    for name in names:
        try:
            _run(
                ["-m", "dvc", "repro", "--single-item", f"attack@{name}"] if dvc else [*_STAGE, "attack", name],
                f"attacks.{name}",
            )
        except UserError as error:
            yield error
            continue
        artifacts = read_artifacts(ROBUSTNESS / name)
        if failure := artifacts.metadata.failure:
            yield UserError(f"attacks.{name}: {failure.reason}")
            continue
        attacked = artifacts.tensor("attacked")
        broken = attacked & (artifacts.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
        yield Strengthened(int(broken.sum()), int(attacked.sum()))


def _run(command: list[str], where: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        # DVC's own last line says which stage failed, the stage's before it why.
        lines = (done.stderr.strip() or done.stdout).splitlines()
        why = [line for line in lines if line.strip() and not line.startswith("ERROR: failed to reproduce")]
        raise UserError(f"{where}: {(why or ['no output'])[-1].removeprefix('windtunnel: ')}")


def _as_yaml(content: object) -> str:
    """Short maps and lists on a line; what was read from a file stays as it was there."""
    return yaml_text(content, default_flow_style=None, width=140)


def _plain(content: object) -> object:
    return parse_own_json(json.dumps(content, default=str))
