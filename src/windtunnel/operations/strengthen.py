"""Stronger attacks for what the sanity checks flagged: written into params.yaml, and run on what the others left."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from windtunnel.core.artifacts import read_artifacts
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.layout import PARAMS_FILE, ROBUSTNESS
from windtunnel.core.repository import dvc_root


@dataclass(frozen=True, slots=True)
class Strengthened:
    """What an entry did: it broke `broken` of the `left` samples that the attacks before it had left."""

    broken: int
    left: int


def lines_of(entries: Mapping[str, Mapping[str, object]]) -> str:
    """The block to add under `attacks` of params.yaml."""
    text = io.StringIO()
    _yaml().dump({"attacks": {name: dict(entry) for name, entry in entries.items()}}, text)
    return text.getvalue()


def add_to(path: Path, entries: Mapping[str, Mapping[str, object]]) -> None:
    """Add the entries under `attacks`, keeping the file's comments and order."""
    yaml = _yaml()
    content = yaml.load(path.read_text(encoding="utf-8"))
    if content.get("attacks") is None:
        content["attacks"] = {}
    for name, entry in entries.items():
        content["attacks"][name] = dict(entry)
    text = io.StringIO()
    yaml.dump(content, text)
    beside = path.with_suffix(".partial")
    beside.write_text(text.getvalue(), encoding="utf-8")
    beside.replace(path)


def _yaml() -> YAML:
    """Short maps and lists on a line; what was read stays as it was."""
    yaml = YAML()
    yaml.preserve_quotes = True  # DVC reads no `{factory: nets:Net}` without them
    yaml.default_flow_style = None
    yaml.width = 140
    return yaml


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
        found = read_artifacts(ROBUSTNESS / name)
        attacked = found.tensor("attacked")
        broken = attacked & (found.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
        yield Strengthened(int(broken.sum()), int(attacked.sum()))


def _run(command: list[str], where: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        # DVC's own last line says which stage failed, the stage's before it why.
        lines = (done.stderr.strip() or done.stdout).splitlines()
        why = [line for line in lines if line.strip() and not line.startswith("ERROR: failed to reproduce")]
        raise UserError(f"{where}: {(why or ['no output'])[-1].removeprefix('windtunnel: ')}")
