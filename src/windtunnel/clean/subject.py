"""The subject of every later assessment, with the clean logits that `clean` computed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from windtunnel.core.artifacts import load_tensors
from windtunnel.core.errors import UserError
from windtunnel.core.subject import PSEUDO_LABELS, Subject, subject_of
from windtunnel.data.load import read_assessed
from windtunnel.models.load import load_classifier


def fresh_subject(data: Path, model: Path, device: str, seed: int) -> Subject:
    """Model and samples from disk, with clean logits computed now: for `clean`."""
    dataset = read_assessed(data)
    return subject_of(load_classifier(model, device, dataset), dataset, seed)


def load_subject(data: Path, model: Path, clean: Path, device: str, seed: int) -> Subject:
    """Model and samples from disk, with the clean logits of the clean assessment: for everything after it.

    Raises UserError where the clean assessment is of other samples.
    """
    dataset = read_assessed(data)
    tensors = load_tensors(clean / "robustness_data.pt")
    logits, predictions, targets = (tensors[key] for key in ("clean_logits", "clean_predictions", "targets"))
    assert not isinstance(logits, dict)
    assert not isinstance(predictions, dict)
    assert not isinstance(targets, dict)
    if len(logits) != len(dataset):
        raise UserError(f"{clean}: is of {len(logits)} samples, {data} of {len(dataset)}; run dvc repro")
    classifier = load_classifier(model, device, dataset)
    caveats = () if dataset.labelled else (PSEUDO_LABELS,)
    return Subject(classifier, replace(dataset, targets=targets), logits, predictions, seed, caveats)
