"""The one way an assessment goes from what was resolved for it to artifacts on disk."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Generic, Protocol, TypeVar

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.assessments.kept import take_back
from windtunnel.core.artifacts import Artifacts, AssessmentResult, write_artifacts
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset, too_many
from windtunnel.core.digests import write_digests
from windtunnel.core.endings import user_errors
from windtunnel.core.layout import ROBUSTNESS
from windtunnel.core.narration import say
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Budget, Entry
from windtunnel.params.model import Model
from windtunnel.params.resolved import FigureSpec, Resolved, read_resolved
from windtunnel.params.server import configured_time_limit

E = TypeVar("E", bound=Entry)
Contra = TypeVar("Contra", bound=Entry, contravariant=True)


class Preflight(Protocol[Contra]):
    """Raises UserError for an entry that cannot run on this model and these samples."""

    def __call__(
        self, where: str, entry: Contra, budget: Budget, classifier: Classifier, dataset: Dataset, /
    ) -> Sequence[str] | None:
        """Check the entry that is named `where` in params.yaml; a line for each thing that will be done otherwise."""


@dataclass(frozen=True, slots=True)
class Task(Generic[E]):
    """One entry of params.yaml as it is run. budget: the norm and epsilon it runs under.

    subject: the model beside the samples that the entry asks for.
    """

    where: str
    name: str
    entry: E
    budget: Budget
    subject: Subject
    resolved: Resolved


def run_entry(
    family: str,
    stage: str,
    name: str,
    schema: type[E],
    preflight: Preflight[E],
    compute: Callable[[Task[E]], AssessmentResult],
) -> Artifacts:
    """Run one entry of a family, from its preflight to its figures.

    Where nothing but its figures changed, the result that `resolve` kept is drawn, and nothing is computed.
    """
    started = time.time()
    resolved = read_resolved(stage, name)
    entry = schema.model_validate(resolved.work.entry)
    subject = current_subject(resolved.work.device, resolved.seed, model_in(resolved))
    seed = resolved.seed if entry.samples.seed is None else entry.samples.seed
    say(too_many(f"{family}.{name}", entry.samples.n, len(subject.dataset)))
    subject = replace(subject, resolved=resolved.digest).choose(entry.samples.n, entry.samples.selection, seed)
    directory = ROBUSTNESS / name
    artifacts = take_back(resolved.digest, directory, subject)
    if artifacts is None:
        task = Task(f"{family}.{name}", name, entry, budget_of(entry), subject, resolved)
        preflight(task.where, entry, task.budget, subject.classifier, subject.dataset)
        result = compute(task)
        result = replace(result, family=family, kwargs={**result.kwargs, "show_sample_names": entry.show_sample_names})
        artifacts = write_artifacts(result, directory, subject, started=started)
    write_digests(directory)
    draw(artifacts, resolved.drawing.figures)
    return artifacts


def draw(artifacts: Artifacts, figures: Sequence[FigureSpec]) -> None:
    """Draw what was resolved. Only the modules of these figures are imported: others may change without a redraw."""
    from windtunnel.assessments.figures.base import draw_figures

    draw_figures(artifacts, [getattr(import_module(f.module), f.name)(**f.options) for f in figures])


def model_in(resolved: Resolved) -> Model:
    """What params.yaml says of the model: which code of the user's may be called for it, and how long it may take."""
    inputs = resolved.work.inputs["model"]
    assert isinstance(inputs, dict)
    return Model.model_validate({**inputs, **configured_time_limit()})


def budget_of(entry: Entry) -> Budget:
    """The budget in a resolved entry; one under which no comparison holds where the entry needs none."""
    norm, epsilon = entry.budget.norm, entry.budget.epsilon
    if norm is None or epsilon is None:
        return Budget.model_construct(norm=norm or Norm.LINF, epsilon=math.nan)
    return Budget(norm=norm, epsilon=epsilon)


def stage_main(run: Callable[[str], object]) -> None:
    """`python -m stages.<stage> NAME`: run one entry, with a user's error as its one line."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m {sys.modules['__main__'].__spec__.name} NAME, the name of an entry")  # type: ignore[union-attr]
    with user_errors():
        run(sys.argv[1])
