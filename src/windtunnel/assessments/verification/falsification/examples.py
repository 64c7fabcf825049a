"""Adversarial examples that attacks have left on disk: a sample broken within the budget needs no certificate."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.assessments.verification.falsification.falsifier import leads
from windtunnel.core import scratch
from windtunnel.core.chunks import finite_samples, put_samples
from windtunnel.core.contracts import Caveat, Norm
from windtunnel.core.distances import distance, within
from windtunnel.core.errors import PrerequisiteError
from windtunnel.core.subject import Subject
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.storage import KEPT


def read_examples(where: str, names: Sequence[str], root: Path) -> dict[str, Artifacts]:
    """Return the results of the attacks `names` under `root`. Raises PrerequisiteError where one has not run yet."""
    for name in names:
        if not (root / name / METADATA_FILE).is_file():
            raise PrerequisiteError(
                f"{where}.examples_from: no result of attacks.{name} is on disk; run `dvc repro attack@{name}` first, "
                f"or leave examples_from out: the cascade has a falsifier of its own"
            )
    return {name: read_artifacts(root / name) for name in names}


def without_images(results: Mapping[str, Artifacts]) -> Iterator[Caveat]:
    """Return caveats on attacks whose examples could not all be used."""
    for name, result in results.items():
        if KEPT in result.data:
            yield Caveat(
                "examples_not_kept",
                f"attacks.{name} kept the images of {len(result.kept)} of {len(result.sample_names)} samples "
                f"(storage.inputs): its other examples falsify nothing here.",
            )


def known_examples(
    subject: Subject, norm: Norm, epsilon: float, results: Mapping[str, Artifacts]
) -> tuple[Tensor, Tensor]:
    """(found (N,) bool, examples (N, ...)): points of `results` within the budget at which another class clearly leads.

    Distances are measured and the model is queried again, so only examples whose images were kept count; rows without an
    example hold the clean input.
    """
    data = subject.dataset
    is_broken, examples = torch.zeros(len(data), dtype=torch.bool), scratch.copy_of(data.inputs)
    position = {sample: i for i, sample in enumerate(data.ids)}
    for result in results.values():
        result = result.pictured
        pairs = [(position[sample], i) for i, sample in enumerate(result.sample_names) if sample in position]
        if not pairs:
            continue
        mine, theirs = (torch.tensor(column) for column in zip(*pairs, strict=True))
        points = scratch.samples_at(result.tensor("perturbed_inputs"), theirs)
        good = within(distance(norm, points, scratch.samples_at(data.inputs, mine)), epsilon) & ~is_broken[mine]
        good &= finite_samples(points) & leads(subject.classifier, points, data.targets[mine])
        put_samples(examples, mine[good], points, good.nonzero().flatten())
        is_broken[mine[good]] = True
    return is_broken, examples
