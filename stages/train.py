"""Stage `train`: train the embedded default, or import the user's model."""

from __future__ import annotations

from windtunnel.core.endings import user_errors
from windtunnel.core.layout import DATA, MODEL
from windtunnel.inputs.data.load import read_assessed, read_train
from windtunnel.inputs.models.load import import_model, load_classifier
from windtunnel.inputs.models.trust import trust_of
from windtunnel.params.load import load_params


def main() -> None:
    """Write reports/model, and load it once so that a model that does not fit the data ends here."""
    params = load_params()
    import_model(params.model, read_train(DATA), params.seed, params.device, MODEL, params.tracking.uri)
    load_classifier(MODEL, params.device, read_assessed(DATA), trust_of(params.model))


if __name__ == "__main__":
    with user_errors():
        main()
