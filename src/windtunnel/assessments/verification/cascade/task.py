"""The task that every step of a verification gets, and the verdicts and bounds of each sample so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical
from windtunnel.core import scratch
from windtunnel.core.contracts import Caveat, Norm, Verdict
from windtunnel.core.scratch import put_samples
from windtunnel.core.subject import Subject
from windtunnel.params.verification import VerificationEntry
from windtunnel.runtime.batch_runner import Checkpoint

UNDECIDED = -1


@dataclass(slots=True)
class Ledger:
    """N samples on their way to a verdict; a step of the cascade writes to the samples it decides.

    subject: with the user's own model, which has the last word on every counter-example.

    verdicts: int64 (N,), UNKNOWN until decided. decided_by: int64 (N,), index into `names`. lower_margins: float32
    (N,), best proven lower bound of the smallest margin, NaN where none was computed. examples: float32 (N, ...), NaN
    rows where there is no counter-example. seconds: float32 (N,). lower, upper: float32 (N, K), NaN where no bound.
    timed_out: bool (N,), left undecided because time was over. subdomains: int64 (N,), that branch and bound has bounded.
    """

    subject: Subject
    verdicts: Tensor
    decided_by: Tensor
    lower_margins: Tensor
    examples: Tensor
    seconds: Tensor
    lower: Tensor
    upper: Tensor
    timed_out: Tensor
    subdomains: Tensor
    names: list[str] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)

    @classmethod
    def of(cls, subject: Subject) -> Ledger:
        """Return the initial ledger, in which only a misclassified sample is falsified by its own clean input."""
        n, k = len(subject.dataset), subject.classifier.num_classes
        ledger = cls(
            subject=subject,
            verdicts=torch.full((n,), int(Verdict.UNKNOWN)),
            decided_by=torch.full((n,), UNDECIDED),
            lower_margins=torch.full((n,), torch.nan),
            examples=scratch.filled(subject.dataset.inputs.shape, torch.nan),
            seconds=torch.zeros(n),
            lower=torch.full((n, k), torch.nan),
            upper=torch.full((n, k), torch.nan),
            timed_out=torch.zeros(n, dtype=torch.bool),
            subdomains=torch.zeros(n, dtype=torch.int64),
        )
        wrong = (~subject.clean_correct).nonzero().flatten()
        put_samples(ledger.examples, wrong, subject.dataset.inputs, wrong)
        ledger._decide(wrong, Verdict.FALSIFIED, "clean")
        return ledger

    @property
    def undecided(self) -> Tensor:
        """Indices of the samples without a decision, int64."""
        return (self.decided_by == UNDECIDED).nonzero().flatten()

    def seconds_left(self, indices: Tensor, timeout: float | None) -> Tensor:
        """Return what earlier steps have left of `timeout` seconds for each sample, (n,); inf without a time-out."""
        return ((float("inf") if timeout is None else timeout) - self.seconds[indices]).clamp(min=0)

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

    def lead(self, tolerance: float) -> float:
        """By how much the label must lead every other class, on the canonical network, to lead on the user's own."""
        return tolerance + 2 * self.canonical.slack
