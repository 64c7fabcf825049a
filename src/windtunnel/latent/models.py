"""Further classifiers of a latent assessment: models of earlier runs, or of MLflow."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.latent.table import LATENT_PGD
from windtunnel.models.load import MODEL_JSON, import_model, load_classifier
from windtunnel.params.latent import LatentEntry
from windtunnel.params.model import Model


def load_models(
    where: str, entry: LatentEntry, dataset: Dataset, device: str, server: str | None
) -> dict[str, Classifier]:
    """The classifiers of `models`, by the text that names them.

    A directory is reports/model of an earlier run, or the reports directory that holds it. Raises UserError, naming the
    key, for one that is not there, does not fit the data or cannot be differentiated.
    """
    found = {}
    for index, name in enumerate(entry.models):
        key = f"{where}.models[{index}]"
        if name in found:
            raise UserError(f"{key}: '{name}' is named twice; each classifier once")
        try:
            model = _fetched(name, dataset, device, server) if ":/" in name else _kept(name, dataset, device)
        except UserError as error:
            raise UserError(f"{key}: {error}") from error
        model.require(LATENT_PGD, key)
        found[name] = replace(model, source=name)
    return found


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
