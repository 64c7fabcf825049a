"""Stage `train`: train the embedded default, or import the user's model."""

from windtunnel.boundary.data.load import read_assessed, read_train
from windtunnel.boundary.models.load import import_model, load_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.boundary.params_file import configured_server
from windtunnel.params.model import Model
from windtunnel.params.resolved import read_resolved
from windtunnel.records.layout import DATA, MODEL


def main() -> None:
    """Write reports/model, and load it once so that a model that does not fit the data fails in this stage."""
    resolved = read_resolved("train")
    work = resolved.work
    model = Model.model_validate(work.entry["model"])
    assessed = read_assessed(DATA)
    import_model(model, read_train(DATA), resolved.seed, work.device, MODEL, configured_server(), assessed)
    load_classifier(MODEL, work.device, assessed, trust_of(model))
