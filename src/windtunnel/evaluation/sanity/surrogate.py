"""A second model to make transfer examples on."""

from __future__ import annotations

from windtunnel.core.classifier import CPU, Classifier
from windtunnel.core.errors import UserError
from windtunnel.evaluation.sanity.check import NotApplicable, NotRun
from windtunnel.evaluation.sanity.evidence import Evidence
from windtunnel.inputs.models.load import fit
from windtunnel.inputs.models.loaders import TORCH, Loaded
from windtunnel.inputs.models.others import named_classifier


def surrogate_of(evidence: Evidence) -> Classifier:
    """The model at `sanity.surrogate`, else the run's own recipe trained under the next seed."""
    from windtunnel.inputs.data.load import load_dataset
    from windtunnel.inputs.models.training import train_classifier

    settings, model, dataset = evidence.params.sanity, evidence.params.model, evidence.subject.dataset
    device = str(evidence.subject.classifier.device)
    if settings.surrogate:
        try:
            return named_classifier(
                "sanity.surrogate", settings.surrogate, dataset, device, evidence.params.tracking.uri
            )
        except UserError as error:
            raise NotRun(str(error)) from error
    if model.source != "train":
        raise NotApplicable("no second model: sanity.surrogate names the directory of one (an earlier reports/model)")
    _, train = load_dataset(evidence.params.data, evidence.params.seed)
    if train is None:
        raise NotApplicable("the data has no training split to train a second model on")
    module = train_classifier(model.train, train, evidence.subject.seed + 1, CPU)
    return fit(
        Loaded(module, TORCH, "surrogate", "surrogate of another seed"), evidence.subject.classifier.device, dataset
    )
