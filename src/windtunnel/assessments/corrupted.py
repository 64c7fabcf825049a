"""`on: {corrupted_by: [...]}`: an attack or a verification whose regions are around corrupted images, not around the clean ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from windtunnel.assessments.task import Task
from windtunnel.core import scratch
from windtunnel.core.contracts import Caveat, CorruptedBudget, Json, PerturbationBudget
from windtunnel.core.errors import UserError
from windtunnel.core.scratch import put_samples
from windtunnel.core.seeds import derive_seed
from windtunnel.params.entry import CORRUPTED_BY, Entry
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.metadata import corruption_pairs, part_name
from windtunnel.records.regions import without_attack
from windtunnel.records.result import AssessmentResult

CORRUPTED_BY_INDEX = (
    "corrupted_by"  # key of robustness_data.pt: int64 (N,), which of kwargs.corrupted_by each sample was corrupted by
)


@dataclass(frozen=True, slots=True)
class CorruptedImages:
    """The corrupted images of an entry. digests: of the results they are from, by `suite/corruption-severity`.

    drawn: int64 (N,), by which of these each of the entry's samples was corrupted. corruption_name: the names in the entry.
    """

    digests: dict[str, str]
    drawn: Tensor
    corruption_name: str

    def record(self, result: AssessmentResult) -> AssessmentResult:
        """Return the result with the images it is about: its region, its metrics without an attack, and a caveat say so."""
        region = result.semantics.perturbation
        assert isinstance(region, PerturbationBudget)
        around = CorruptedBudget(region.norm, region.epsilon, region.step_size, region.steps, self.corruption_name)
        drawn_by = (
            f", each under one of {len(self.digests)} corruptions, drawn by the seed" if len(self.digests) > 1 else ""
        )
        text = (
            f"Its images are corrupted by {self.corruption_name}{drawn_by}: correct and broken are said of these images, and nothing of "
            f"the clean samples. No budget's sandwich counts it, and no sanity check looks at it."
        )
        digests: Json = self.digests
        return replace(
            result,
            semantics=replace(result.semantics, perturbation=around),
            data={**result.data, CORRUPTED_BY_INDEX: self.drawn},
            metrics=without_attack(result.metrics),
            caveats=(Caveat("on_corrupted_images", text), *result.caveats),
            kwargs={**result.kwargs, CORRUPTED_BY_INDEX: digests},
        )


def names_of_images(entry: Entry) -> str:
    """Return the suites and corruptions that `on.corrupted_by` names, in one line; empty for none."""
    return ", ".join(f"{r.name}/{r.part}" if r.part else r.name for r in entry.corrupted_by)


def on_corrupted_images(task: Task[Entry]) -> tuple[Task[Entry], CorruptedImages | None]:
    """Return the task on the images that `on.corrupted_by` names; the same one, and None, where it names none.

    Each sample is under one of the corruptions and severities that are named. Where these are several, it is drawn by the run's
    seed and the sample's id, so that the accuracy estimates the mean over them, and one sample counts once.
    Raises UserError where a suite has no result.
    """
    references = task.entry.corrupted_by
    if not references:
        return task, None
    parts: dict[str, Artifacts] = {}
    for reference in references:
        suite = task.earlier[reference.name]
        names = [part_name(*pair) for pair in corruption_pairs(suite.metadata.kwargs)]
        for name in names:
            if reference.part in ("", name):
                parts[f"{reference.name}/{name}"] = read_artifacts(suite.directory / name)
        if not names:
            raise UserError(f"{task.where}.{CORRUPTED_BY}: corruptions.{reference.name} failed and left no images")
    parts = dict(sorted(parts.items()))  # entries that name the same images in another order have the same images
    shared = set.intersection(*(set(part.sample_names) for part in parts.values()))
    every = task.all_samples.without({*task.all_samples.dataset.ids} - shared)
    names_of_samples = every.dataset.ids
    drawn = torch.tensor([derive_seed(every.seed, CORRUPTED_BY, name) % len(parts) for name in names_of_samples])
    inputs = scratch.copy_of(every.dataset.inputs)
    for index, part in enumerate(parts.values()):
        mine, theirs = part.common_samples(names_of_samples)
        chosen = drawn[mine] == index
        put_samples(inputs, mine[chosen], part.tensor("perturbed_inputs"), theirs[chosen])
    logits = every.classifier.logits(inputs)
    predictions = every.classifier.criterion.predict(logits, every.dataset.targets)
    corrupted = replace(
        every, dataset=replace(every.dataset, inputs=inputs), clean_logits=logits, clean_predictions=predictions
    )
    subject = task.chosen_of(corrupted)
    if len(subject.dataset) == len(corrupted.dataset):  # the suite had the same samples: these are the entry's already
        subject = replace(subject, dataset=replace(subject.dataset, chosen=task.subject.dataset.chosen))
    row_of = {name: i for i, name in enumerate(names_of_samples)}
    of_subject = drawn[torch.tensor([row_of[name] for name in subject.dataset.ids], dtype=torch.int64)]
    suites = {reference.name for reference in references}
    earlier = {name: result for name, result in task.earlier.items() if name not in suites}
    digests = {name: part.digest() for name, part in parts.items()}
    images = CorruptedImages(digests, of_subject, names_of_images(task.entry))
    return replace(task, subject=subject, all_samples=corrupted, earlier=earlier), images
