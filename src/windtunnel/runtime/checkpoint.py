"""Results of finished batches on disk, so that a killed run continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from torch import Tensor

from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import load_tensors, save_tensors

CHECKPOINTS = Path(".cache/windtunnel/checkpoints")
_FORMAT = 1  # raise it when a file of another meaning is written: this module is in no cache key


class Checkpoint:
    """Results of finished batches, kept outside DVC's outputs until the assessment is whole.

    `resolved` is the digest of everything that `resolve` found to decide the result (params, code, versions), `identity`
    what is known only later (digests of data and model, device); a run that differs in either never sees these files.
    Without `resolved`, outside the pipeline, nothing is kept: nobody could tell whether a file is still right.
    """

    def __init__(self, name: str, resolved: str, identity: object, root: Path | None = None) -> None:
        text = json.dumps([_FORMAT, name, resolved, identity], sort_keys=True, default=str)
        self.directory = (root or CHECKPOINTS) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self._keeps, self._kept = bool(resolved), False

    @classmethod
    def of(cls, name: str, subject: Subject, *identity: object) -> Checkpoint:
        """Return the checkpoint of an assessment of `subject`, whose data, model, seed and device join the `identity`."""
        data, model = subject.dataset.digest(), subject.classifier.digest
        return cls(name, subject.resolved, [*identity, data, model, subject.seed, str(subject.classifier.device)])

    def keep(self) -> None:
        """Mark the assessment as incomplete: `clear` leaves what there is, for whoever tries the rest."""
        self._kept = True

    def get(self, number: int) -> dict[str, Tensor] | None:
        """Return the result of batch `number`, or None where it is not there or was damaged by a kill."""
        if not self._keeps:
            return None
        try:
            loaded = load_tensors(self.directory / f"{number:06d}.pt")
        except UserError:
            return None
        return {key: value for key, value in loaded.items() if isinstance(value, Tensor)}

    def has(self, number: int) -> bool:
        """Return True if there is a file for batch `number`, even a damaged one."""
        return self._keeps and (self.directory / f"{number:06d}.pt").is_file()

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Keep the result of batch `number`."""
        if self._keeps:
            save_tensors(dict(result), self.directory / f"{number:06d}.pt")

    def clear(self) -> None:
        """Forget everything: the assessment is on disk. But not where it is not whole (`keep`)."""
        if not self._kept:
            shutil.rmtree(self.directory, ignore_errors=True)
