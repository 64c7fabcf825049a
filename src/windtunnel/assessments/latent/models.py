"""Further classifiers of a latent assessment: models of earlier runs, or of MLflow."""

from __future__ import annotations

from windtunnel.assessments.latent.table import LATENT_PGD
from windtunnel.boundary.models.others import named_classifier
from windtunnel.core.classifier import Classifier
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.params.latent import LatentEntry
from windtunnel.params.model import OtherModel


def load_models(
    where: str, entry: LatentEntry, dataset: Dataset, device: str, server: str | None
) -> dict[str, Classifier]:
    """The classifiers of `models`, by the text that names them.

    Raises UserError, naming the key, for one that is not there, does not fit the data or cannot be differentiated.
    """
    classifiers: dict[str, Classifier] = {}
    for index, directory in enumerate(entry.models):
        key, name = f"{where}.models[{index}]", OtherModel.of(directory).model
        if name in classifiers:
            raise UserError(f"{key}: '{name}' is named twice; each classifier once")
        classifiers[name] = named_classifier(key, directory, dataset, device, server)
        classifiers[name].require(LATENT_PGD, key)
    return classifiers
