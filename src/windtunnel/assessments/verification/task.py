"""What every step of a verification is given."""

from __future__ import annotations

import time
from dataclasses import dataclass

from windtunnel.assessments.verification.bounding import Bounder
from windtunnel.assessments.verification.canonical.subject import Canonical
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject
from windtunnel.params.verification import VerificationEntry


@dataclass(frozen=True, slots=True)
class Task:
    """What every step is given: the assessment's name, the subject, the region, the entry's options.

    canonical: the subject with a network of our own, whose logits are of unit scale; the user's model is the ledger's.

    deadline: time.monotonic() at which the entry's time budget is over. bounder: bounds whatever is bounded.
    probed: bound methods that are tried on a few samples first.
    """

    name: str
    canonical: Canonical
    norm: Norm
    epsilon: float
    entry: VerificationEntry
    deadline: float
    bounder: Bounder
    probed: frozenset[str] = frozenset()

    @property
    def subject(self) -> Subject:
        """The samples with the canonical network."""
        return self.canonical.subject

    @property
    def time_left(self) -> float:
        """Seconds of the time budget; inf where there is none."""
        return self.deadline - time.monotonic()

    def lead(self, tolerance: float) -> float:
        """By how much the target must lead every other class, on the canonical network, to lead on the user's own."""
        return tolerance + 2 * self.canonical.slack
