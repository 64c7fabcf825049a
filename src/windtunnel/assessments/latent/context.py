"""What a latent assessment builds on beside the samples: generative models, and further classifiers."""

from __future__ import annotations

from windtunnel.assessments.latent.models import load_models
from windtunnel.assessments.run import Job
from windtunnel.core.files import read_json
from windtunnel.core.layout import GENERATORS
from windtunnel.inputs.generators.load import load_generators
from windtunnel.params.latent import LatentEntry


def context(job: Job) -> dict[str, object]:
    """`generators`, `quality` and `others` of latent.assess. Raises UserError where a model is missing or unfit."""
    assert isinstance(job.entry, LatentEntry)
    dataset, params = job.subject.dataset, job.params
    return {
        "generators": load_generators(GENERATORS, job.subject.classifier.device, dataset),
        "quality": read_json(GENERATORS / "quality.json"),
        "others": load_models(job.where, job.entry, dataset, params.device, params.tracking.uri),
    }
