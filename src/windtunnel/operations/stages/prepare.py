"""Stage `prepare`: load, convert, check and choose the samples."""

from __future__ import annotations

from windtunnel.core.layout import DATA
from windtunnel.inputs.data.load import load_dataset, save_datasets
from windtunnel.inputs.models.load import view_of
from windtunnel.params.data import Data
from windtunnel.params.model import Model
from windtunnel.params.resolved import read_resolved


def main() -> None:
    """Write reports/data."""
    resolved = read_resolved("prepare")
    work = resolved.work
    view = view_of(Model.model_validate(work.inputs["model"])) if "model" in work.inputs else None
    save_datasets(*load_dataset(Data.model_validate(work.entry["data"]), resolved.seed, view), DATA)
