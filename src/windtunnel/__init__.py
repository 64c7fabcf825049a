"""windtunnel: robustness assessment of image classifiers as a DVC pipeline with MLflow tracking, or with one call.

The public names; everything else may change between releases.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.boundary.params import load_params
    from windtunnel.core.classifier import Classifier
    from windtunnel.core.dataset import Dataset
    from windtunnel.core.errors import UserError
    from windtunnel.core.subject import Subject, subject_of
    from windtunnel.operations.api.result import Result
    from windtunnel.operations.api.run import assess, attack, autoattack, corrupt, read, verify
    from windtunnel.records.artifacts import Artifacts, read_artifacts, write_artifacts
    from windtunnel.records.result import AssessmentResult

_HOME = {
    name: module
    for module, names in {
        "boundary.params": ("load_params",),
        "core.classifier": ("Classifier",),
        "core.dataset": ("Dataset",),
        "core.errors": ("UserError",),
        "core.subject": ("Subject", "subject_of"),
        "operations.api.result": ("Result",),
        "operations.api.run": ("assess", "attack", "autoattack", "corrupt", "read", "verify"),
        "records.artifacts": ("Artifacts", "read_artifacts", "write_artifacts"),
        "records.result": ("AssessmentResult",),
    }.items()
    for name in names
}

__all__ = [
    "Artifacts",
    "AssessmentResult",
    "Classifier",
    "Dataset",
    "Result",
    "Subject",
    "UserError",
    "assess",
    "attack",
    "autoattack",
    "corrupt",
    "load_params",
    "read",
    "read_artifacts",
    "subject_of",
    "verify",
    "write_artifacts",
]


def __getattr__(name: str) -> object:
    """Import a public name at its first use: `windtunnel --help` must not wait for torch. Functions are behind the door."""
    if name == "__version__":
        from importlib.metadata import version

        return version("windtunnel")
    if name not in _HOME:
        raise AttributeError(f"module 'windtunnel' has no attribute '{name}'")
    door = import_module("windtunnel.boundary.door")
    globals()[name] = value = door.public(getattr(import_module(f"windtunnel.{_HOME[name]}"), name))
    return value
