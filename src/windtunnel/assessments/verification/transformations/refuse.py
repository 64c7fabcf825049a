"""Refuse, before anything is computed, what cannot be certified of a transformation."""

from __future__ import annotations

from dataclasses import replace

import torch

from windtunnel.assessments.attacks.preflight import check_image
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.transformations.affine_forms import FormNetwork
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import PerturbationBudget
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import subject_of
from windtunnel.core.transformations import transformation_of
from windtunnel.params.verification import VerificationEntry


def check_certificate(
    where: str, entry: VerificationEntry, region: PerturbationBudget, classifier: Classifier, dataset: Dataset
) -> None:
    """Raise UserError or IncompatibleError, in one line, for a region, a model or a key without a certificate."""
    transformation = transformation_of(region.norm)
    assert transformation is not None
    assert region.epsilon is not None
    for key in ("radius", "examples_from"):
        if getattr(entry, key):
            raise UserError(f"{where}.{key}: is for balls; params.verified_range gives the verified part of each range")
    if not dataset.is_image:
        raise IncompatibleError(f"{where}: transformations are of images, the data is tabular")
    check_image(where, region.norm, region.epsilon, dataset.inputs.shape[1:])
    if len(dataset) and transformation.kinds[0].name != "occlusion":  # which the model itself decides, image by image
        single = replace(dataset.subset(torch.arange(1)), targets=torch.zeros(1, dtype=torch.int64))
        try:
            network_of(classifier, subject_network=canonical_subject(subject_of(classifier, single)).subject.classifier)
        except IncompatibleError as error:
            raise IncompatibleError(f"{where}: {error}") from error


def network_of(classifier: Classifier, subject_network: Classifier) -> FormNetwork:
    """Return the traced network of a classifier. Raises IncompatibleError where it has a layer without bounds."""
    return FormNetwork(subject_network.module, classifier.source)
