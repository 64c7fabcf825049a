"""Stage `prepare`: load, convert, check and choose the samples."""

from windtunnel.boundary.data.load import load_dataset, save_datasets
from windtunnel.boundary.models.views import view_of
from windtunnel.core.dataset import too_many
from windtunnel.params.data import Data
from windtunnel.params.model import Model
from windtunnel.params.resolved import read_resolved
from windtunnel.records.layout import DATA
from windtunnel.runtime.console import warn


def main() -> None:
    """Write reports/data."""
    resolved = read_resolved("prepare")
    work = resolved.work
    data = Data.model_validate(work.entry["data"])
    view = view_of(Model.model_validate(work.inputs["model"])) if "model" in work.inputs else None
    assessed, train = load_dataset(data, resolved.seed, view)
    warn(too_many("data", data.samples.n, len(assessed)))
    save_datasets(assessed, train, DATA)
