"""Files of `resolve` for each stage and entry: everything that decides a result, and settings of its figures."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, ValidationError, model_serializer

from windtunnel.core.errors import UserError
from windtunnel.params.entry import Block, Value
from windtunnel.records.files import read_json, write_json
from windtunnel.records.layout import RESOLVED


class Work(Block):
    """Inputs that decide the numbers of a stage beside the outputs of earlier stages; none is of the machine.

    entry: its block of params.yaml with every default and the budget filled in. inputs: what other blocks say of code of
    the user's that may be called for the model and the generators. files: digests of the user's own files,
    by the key that names each. code: digests of the modules that it executes. libraries: public versions of what they
    import. builds_on: digests of what was resolved for other entries whose results it reads.
    """

    entry: dict[str, JsonValue]
    inputs: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    seed: int | None = None
    device: str = ""
    files: dict[str, str] = Field(default_factory=dict)
    code: dict[str, str] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)
    builds_on: dict[str, str] = Field(default_factory=dict)


class FigureSpec(Block):
    """A figure: the class `name` of `module`, with its options."""

    module: str
    name: str
    options: dict[str, Value] = Field(default_factory=dict)


class Drawing(Block):
    """Settings that decide the figures, not the result."""

    figures: tuple[FigureSpec, ...] = ()
    code: dict[str, str] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)
    pictures: str = "shown"

    @model_serializer(mode="wrap")
    def _without_default(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the default out, so that files of older versions stay as they are."""
        content: dict[str, Any] = serialise(self)
        if self.pictures == "shown":
            del content["pictures"]
        return content


class Resolved(Block):
    """One file of reports/resolved. `family` and `name` are those of the entry; empty for a stage that has none.

    has_failed: written by the stage itself where it failed for a reason that may pass; `resolve` takes it away, and that
    difference makes DVC run the entry again.
    """

    stage: str
    family: str = ""
    name: str = ""
    work: Work
    drawing: Drawing = Drawing()
    has_failed: bool = False

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of everything that decides the numbers: with equal data and model, equal digests mean equal results."""
        text = json.dumps([self.stage, self.name, self.work.model_dump(mode="json")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def seed(self) -> int:
        """The run's seed. Raises UserError for a stage that was resolved without one."""
        if self.work.seed is None:
            raise UserError(f"{self.label}: was resolved without a seed; run `dvc repro resolve`")
        return self.work.seed

    @property
    def label(self) -> str:
        """Name of the stage in DVC: `attack@pgd`, `train`."""
        return f"{self.stage}@{self.name}" if self.name else self.stage

    def write(self, root: Path = RESOLVED) -> bool:
        """Write the file if its content differs; return True if it was written."""
        path = resolved_file(self.stage, self.name, root)
        content = self.model_dump(mode="json", exclude=None if self.has_failed else {"has_failed"})
        try:
            if read_json(path) == content:
                return False
        except UserError:
            pass  # not there yet, or damaged
        write_json(content, path)
        return True


def resolved_file(stage: str, name: str = "", root: Path = RESOLVED) -> Path:
    """Return the path of the resolved file of a stage or of one of its entries."""
    return root / stage / f"{name}.json" if name else root / f"{stage}.json"


def read_resolved(stage: str, name: str = "", root: Path = RESOLVED) -> Resolved:
    """Read the resolved file of a stage. Raises UserError where there is nothing, or nothing of this version."""
    path = resolved_file(stage, name, root)
    if not path.is_file():
        raise UserError(f"{path}: no such file; `dvc repro resolve` writes it, for every entry of params.yaml")
    try:
        return Resolved.model_validate(read_json(path))
    except ValidationError as error:
        raise UserError(f"{path}: is of another version of windtunnel; run `dvc repro resolve`") from error
