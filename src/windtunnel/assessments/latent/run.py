"""One entry of `latent` as its stage runs it, on the generative models of `generators`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.assessments.latent.assess import assess
from windtunnel.assessments.latent.models import load_models
from windtunnel.boundary.generators.load import generators_in, load_generators
from windtunnel.boundary.generators.record import read_quality
from windtunnel.boundary.params_file import configured_server
from windtunnel.params.latent import LatentEntry

if TYPE_CHECKING:
    from windtunnel.assessments.task import Task
    from windtunnel.records.artifacts import AssessmentResult


def run(task: Task[LatentEntry]) -> AssessmentResult:
    """Run one entry for this run's classifier and for its `models`."""
    subject = task.subject
    others = load_models(
        task.where, task.entry, task.all_samples.dataset, task.resolved.work.device, configured_server()
    )
    block = generators_in(task.resolved.work.inputs["generators"])
    generators = load_generators(task.layout.generators, subject.classifier.device, task.all_samples.dataset, block)
    quality = read_quality(task.layout.generators)
    return assess(task.name, task.entry, subject, generators, quality, others, task.all_samples)
