"""Stronger attacks for what the sanity checks flagged: written into params.yaml, and run on what the others left."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from windtunnel.core.artifacts import read_artifacts
from windtunnel.core.contracts import Json, Verdict
from windtunnel.core.errors import UserError
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.core.repository import dvc_root


@dataclass(frozen=True, slots=True)
class Strengthened:
    """What an entry did: it broke `broken` of the `left` samples that the attacks before it had left."""

    name: str
    broken: int
    left: int


def lines_of(entries: Mapping[str, Mapping[str, Json]]) -> str:
    """The block to add under `attacks` of params.yaml."""
    yaml, text = YAML(), io.StringIO()
    yaml.default_flow_style = None
    yaml.width = 140
    yaml.dump({"attacks": {name: dict(entry) for name, entry in entries.items()}}, text)
    return text.getvalue()


def add_to(path: Path, entries: Mapping[str, Mapping[str, Json]]) -> None:
    """Add the entries under `attacks`, keeping the file's comments and order."""
    yaml = YAML()
    yaml.width = 140
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


_STAGE = ("-m", "windtunnel", "stage")


def run_entry(name: str) -> Strengthened:
    """Run one entry, through DVC where the project has it, so that its result is cached. Raises UserError where it fails."""
    dvc = dvc_root() is not None
    attack = ["-m", "dvc", "repro", "--single-item", f"attack@{name}"] if dvc else [*_STAGE, "attack", name]
    for command in ([*_STAGE, "resolve"], attack):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise UserError(f"attacks.{name}: {lines[-1]}")
    found = read_artifacts(ROBUSTNESS / name)
    attacked = found.tensor("attacked")
    broken = attacked & (found.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED)
    return Strengthened(name, int(broken.sum()), int(attacked.sum()))
