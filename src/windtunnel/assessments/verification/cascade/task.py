"""The task that every step of a verification gets."""

import time
from dataclasses import dataclass, field

from windtunnel.assessments.verification.bound_propagation.bounder import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical
from windtunnel.assessments.verification.cascade.ledger import Ledger
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.verification import VerificationEntry
from windtunnel.runtime.checkpoint import Checkpoint


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

    def checkpoint(self, ledger: Ledger, step: str, *what: object) -> Checkpoint:
        """Return the checkpoint of a step, identified by all that decides its results.

        `what` among it, such as the samples it is run on.
        """
        subject = self.subject
        settings = [self.entry.model_dump(mode="json"), self.epsilon, str(self.norm), self.canonical.slack]
        digests, device = [subject.dataset.digest(), subject.classifier.digest], str(subject.classifier.device)
        identity = [what, *settings, *digests, device, subject.seed]
        self.checkpoints.append(Checkpoint(f"{self.name}.{step}", ledger.subject.resolved, identity))
        return self.checkpoints[-1]

    def lead(self, tolerance: float) -> float:
        """By how much the target must lead every other class, on the canonical network, to lead on the user's own."""
        return tolerance + 2 * self.canonical.slack
