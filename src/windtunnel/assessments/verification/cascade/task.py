"""The task that every step of a verification gets, and the verdicts and bounds of each sample so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical
from windtunnel.core import scratch
from windtunnel.core.batches import Batch
from windtunnel.core.contracts import Caveat, Norm, Verdict
from windtunnel.core.scratch import put_samples
from windtunnel.core.subject import Subject
from windtunnel.params.verification import VerificationEntry
from windtunnel.runtime.batch_runner import Checkpoint, each_batch

UNDECIDED = -1


class Ledger:
    """N samples on their way to a verdict; a step of the cascade writes to the samples it decides.

    At first only a misclassified sample is decided: its own clean input falsifies it.

    Args:
        subject: The samples with the user's own model, which has the last word on every counter-example.
    """

    def __init__(self, subject: Subject) -> None:
        n, k = len(subject.dataset), subject.classifier.num_classes
        self.subject = subject
        self.verdicts = torch.full((n,), int(Verdict.UNKNOWN))  # int64
        self.decided_by = torch.full((n,), UNDECIDED)  # int64, index into `names`
        self.names = list[str]()
        self.lower_margins = torch.full((n,), torch.nan)  # best proven lower bound of the smallest margin, NaN for none
        self.lower = torch.full((n, k), torch.nan)  # bounds of the logits, NaN for none
        self.upper = torch.full((n, k), torch.nan)
        self.examples = scratch.filled(subject.dataset.inputs.shape, torch.nan)  # NaN rows where there is none
        self.seconds = torch.zeros(n)
        self.timed_out = torch.zeros(n, dtype=torch.bool)  # left undecided because time was over
        self.subdomains = torch.zeros(n, dtype=torch.int64)  # that branch and bound has bounded
        self.caveats = list[Caveat]()
        wrong = (~subject.clean_correct).nonzero().flatten()
        put_samples(self.examples, wrong, subject.dataset.inputs, wrong)
        self._decide(wrong, Verdict.FALSIFIED, "clean")

    @property
    def undecided(self) -> Tensor:
        """Indices of the samples without a decision, int64."""
        return (self.decided_by == UNDECIDED).nonzero().flatten()

    def seconds_left(self, timeout: float | None) -> Tensor:
        """Return what earlier steps have left of `timeout` seconds for each sample, (N,); inf without a time-out."""
        return ((torch.inf if timeout is None else timeout) - self.seconds).clamp(min=0)

    def bound(self, indices: Tensor, margins: Tensor, lower: Tensor, upper: Tensor) -> None:
        """Keep the tighter of these bounds and those known already: all of them hold."""
        self.lower_margins[indices] = torch.fmax(self.lower_margins[indices], margins)
        self.lower[indices] = torch.fmax(self.lower[indices], lower)
        self.upper[indices] = torch.fmin(self.upper[indices], upper)

    def verify(self, indices: Tensor, by: str) -> None:
        """Record these samples as verified."""
        self._decide(indices, Verdict.VERIFIED, by)

    def falsify(self, indices: Tensor, examples: Tensor, by: str) -> Tensor:
        """Record counter-examples of these samples, as far as the user's own model agrees; (n,) bool, whether it does.

        What verifiers see is a copy of the model in another form, and rounding can part the two at a tie.
        """
        targets = self.subject.dataset.targets[indices]
        wrong = self.subject.classifier.predict(examples, targets) != targets
        self.examples[indices[wrong]] = examples[wrong]
        self._decide(indices[wrong], Verdict.FALSIFIED, by)
        return wrong

    def fail(self, index: int, by: str) -> None:
        """Record that the step broke down on this sample; a later step may still decide it."""
        self.verdicts[index] = int(Verdict.ERROR)
        if by not in self.names:
            self.names.append(by)

    def _decide(self, indices: Tensor, verdict: Verdict, by: str) -> None:
        if by not in self.names:
            self.names.append(by)
        self.verdicts[indices] = int(verdict)
        self.decided_by[indices] = self.names.index(by)


class BatchWork(Protocol):
    """Work on a batch in any process."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return the result of a batch."""

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """Return the result of a batch that no worker finished."""


@dataclass(frozen=True, slots=True)
class VerificationTask:
    """The task that every step gets: the assessment's name, the subject, the region, the entry's options.

    canonical: the subject with a network of our own, whose logits are of unit scale; the user's model is the ledger's.

    deadline: time.monotonic() at which the entry's time budget is over. bounder: bounds whatever is bounded.
    steps: all of them, in their order. probed: bound methods that are tried on a few samples first. checkpoints: what steps have
    kept, for when all is written.
    """

    name: str
    canonical: Canonical
    norm: Norm
    epsilon: float
    entry: VerificationEntry
    deadline: float
    bounder: Bounder
    steps: tuple[str, ...] = ()
    probed: frozenset[str] = frozenset()
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def subject(self) -> Subject:
        """The samples with the canonical network."""
        return self.canonical.subject

    @property
    def time_left(self) -> float:
        """Seconds of the time budget; inf where there is none."""
        return self.deadline - time.monotonic()

    def checkpoint(self, step: str, *what: object) -> Checkpoint:
        """Return the checkpoint of a step, identified by all that decides its results.

        `what` among it, such as the samples it is run on.
        """
        settings = (self.entry.model_dump(mode="json"), self.epsilon, str(self.norm), self.canonical.slack)
        self.checkpoints.append(Checkpoint.of(f"{self.name}.{step}", self.subject, what, *settings))
        return self.checkpoints[-1]

    def results(
        self, batches: Iterable[Batch], work: BatchWork, what: str, checkpoint: Checkpoint
    ) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
        """Yield each batch with its result, which is `work.nothing` where its workers were lost. what: for the progress bar."""
        name, incidents = f"{self.name} {what}", self.bounder.incidents
        return each_batch(batches, work, name=name, checkpoint=checkpoint, without=work.nothing, incidents=incidents)

    def lead(self, tolerance: float) -> float:
        """By how much the label must lead every other class, on the canonical network, to lead on the user's own."""
        return tolerance + 2 * self.canonical.slack
