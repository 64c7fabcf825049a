"""Further classifiers beside the one under assessment: models of earlier runs, or of MLflow."""

import tempfile
from dataclasses import replace
from pathlib import Path

from windtunnel.boundary.models.load import import_model, load_classifier
from windtunnel.boundary.models.record import MODEL_JSON
from windtunnel.boundary.models.trust import Trust, trust_of
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.model import Model, OtherModel


def named_classifier(
    key: str, location: str | OtherModel, dataset: Dataset, device: str, server: str | None
) -> Classifier:
    """Return the classifier at `location`, whose name becomes its `source`; it runs nothing that does not stand at `key`.

    A directory is reports/model of an earlier run, or the reports directory that holds it; anything with `:/` is an
    MLflow URI, on the tracking server `server`. Raises UserError, naming the key `key`, for one that is not there or
    does not fit the data.
    """
    other = OtherModel.of(location)
    name, trust = other.model, trust_of(other, key)
    try:
        model = _fetched(other, dataset, device, server, trust) if ":/" in name else _kept(name, dataset, device, trust)
    except UserError as error:
        line = str(error)
        raise UserError(line if line.startswith(key) else f"{key}: {line}") from error
    return replace(model, source=name)


def _kept(name: str, dataset: Dataset, device: str, trust: Trust) -> Classifier:
    directories = [folder for folder in (Path(name), Path(name) / "model") if (folder / MODEL_JSON).is_file()]
    if not directories:
        raise UserError(
            f"'{name}' holds no {MODEL_JSON}; name the reports/model directory of an earlier run, or an MLflow URI "
            f"(models:/name/3)"
        )
    return load_classifier(directories[0], device, dataset, trust)


def _fetched(other: OtherModel, dataset: Dataset, device: str, server: str | None, trust: Trust) -> Classifier:
    model = Model(source="mlflow", uri=other.model, allow_pickle=other.allow_pickle)
    with tempfile.TemporaryDirectory() as folder:
        import_model(model, None, 0, device, Path(folder), server, dataset)
        return load_classifier(Path(folder), device, dataset, trust)
