"""Further classifiers beside the one under assessment: models of earlier runs, or of MLflow."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.inputs.models.load import MODEL_JSON, import_model, load_classifier
from windtunnel.params.model import Model


def named_classifier(key: str, name: str, dataset: Dataset, device: str, server: str | None) -> Classifier:
    """The classifier that `name` names, which becomes its `source`.

    A directory is reports/model of an earlier run, or the reports directory that holds it; anything with `:/` is an
    MLflow URI, on the tracking server `server`. Raises UserError, naming the key `key`, for one that is not there or
    does not fit the data.
    """
    try:
        model = _fetched(name, dataset, device, server) if ":/" in name else _kept(name, dataset, device)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    return replace(model, source=name)


def _kept(name: str, dataset: Dataset, device: str) -> Classifier:
    directories = [folder for folder in (Path(name), Path(name) / "model") if (folder / MODEL_JSON).is_file()]
    if not directories:
        raise UserError(
            f"'{name}' holds no {MODEL_JSON}; name the reports/model directory of an earlier run, or an MLflow URI "
            f"(models:/name/3)"
        )
    return load_classifier(directories[0], device, dataset)


def _fetched(uri: str, dataset: Dataset, device: str, server: str | None) -> Classifier:
    with tempfile.TemporaryDirectory() as folder:
        import_model(Model(source="mlflow", uri=uri), None, 0, device, Path(folder), server)
        return load_classifier(Path(folder), device, dataset)
