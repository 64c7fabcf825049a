"""The subject of every later assessment, with the clean logits that `clean` computed once."""

from dataclasses import replace
from pathlib import Path

from windtunnel.boundary.data.load import read_assessed
from windtunnel.boundary.models.load import load_classifier
from windtunnel.boundary.models.trust import NOTHING, Trust, trust_of
from windtunnel.core.errors import UserError
from windtunnel.core.subject import PSEUDO_LABELS, Subject, subject_of
from windtunnel.params.model import Model as ModelBlock
from windtunnel.records.artifacts import read_artifacts, same_samples
from windtunnel.records.layout import CLEAN, DATA, MODEL


def fresh_subject(data: Path, model: Path, device: str, seed: int, trust: Trust = NOTHING) -> Subject:
    """Model and samples from disk, with clean logits computed now: for `clean`."""
    dataset = read_assessed(data)
    return subject_of(load_classifier(model, device, dataset, trust), dataset, seed)


def current_subject(device: str, seed: int, model: ModelBlock) -> Subject:
    """Return the model and the samples of the run in the current directory, with the clean logits that `clean` computed.

    `model` is the block of params.yaml; no other code of the user is called.
    """
    return load_subject(DATA, MODEL, CLEAN, device, seed, trust_of(model))


def load_subject(data: Path, model: Path, clean: Path, device: str, seed: int, trust: Trust = NOTHING) -> Subject:
    """Model and samples from disk, with the clean logits of the clean assessment: for everything after it.

    Raises UserError where the clean assessment is of other samples or of another model.
    """
    dataset = read_assessed(data)
    artifacts = read_artifacts(clean)
    if not same_samples(artifacts, dataset.inputs):
        raise UserError(f"{clean}: is of other samples than {data}; run dvc repro")
    classifier = load_classifier(model, device, dataset, trust)
    if artifacts.metadata.provenance.model_digest != classifier.digest:
        raise UserError(f"{clean}: is of another model than {model}; run dvc repro")
    caveats = (*(() if dataset.labelled else (PSEUDO_LABELS,)), *classifier.caveats)
    return Subject(
        classifier,
        replace(dataset, targets=artifacts.tensor("targets")),
        artifacts.tensor("clean_logits"),
        artifacts.tensor("clean_predictions"),
        seed,
        caveats,
    )
