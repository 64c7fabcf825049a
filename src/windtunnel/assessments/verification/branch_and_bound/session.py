"""Branch and bound of a group of samples in one process: the network, taken apart once, and limits of time, work and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_propagation.memory import memory_to_use
from windtunnel.assessments.verification.branch_and_bound.decide import NOTHING, Decided, Inner, decide
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsification.falsifier import confirmed
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.batches import out_of_memory
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import OutOfTimeError
from windtunnel.core.machine import memory_limit, time_limit
from windtunnel.core.subject import Subject
from windtunnel.params.verification import BranchAndBound

WEAKER = "alpha-crown"  # what answers where branch and bound cannot
# An accelerator is busy with several samples at once; on a CPU one after the other is as quick, and lighter.
_TOGETHER = 8
_FLOAT = 4  # bytes
_COPIES = 12  # of all activations of a row, at the peak of a bounding pass
_MOST_ROWS = 256  # on a CPU more do not go faster
_UNUSED = 0.05  # of its time a search leaves at most, so that what it found last is kept


def network_of(classifier: Classifier) -> Network:
    """Return the classifier's module, taken apart. Raises IncompatibleError naming the operator that has no linear bounds."""
    return Network(classifier.module, classifier.input_shape, classifier.device)


def limits_of(params: BranchAndBound, network: Network) -> Limits:
    """Limits on the work per sample; how many rows go together follows from the memory allowed and the network alone."""
    memory = params.memory * 2**20
    rows = memory // (_COPIES * _FLOAT * network.width)
    most = _MOST_ROWS if network.device.type == "cpu" else 16 * _MOST_ROWS
    assert params.domains is not None  # VerificationEntry.branch_and_bound
    return Limits(params.domains, params.iterations, params.batch, memory, max(2, min(most, rows)))


def groups(indices: Tensor, device: torch.device) -> tuple[Tensor, ...]:
    """Parts of `indices` whose samples are searched together."""
    return tuple(indices.split(1 if device.type == "cpu" else _TOGETHER)) if len(indices) else ()


@dataclass(slots=True)
class Searcher:
    """Decides samples of `subject` under one norm, in any process.

    lead: by how much the target must lead every other class. seconds: float (N,), of each sample; inf for no limit.
    deadline: when all is over. The network is taken apart once in each process.
    """

    subject: Subject
    norm: Norm
    lead: float
    params: BranchAndBound
    seconds: Tensor
    deadline: Deadline
    _network: Network | None = None

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Without the network, which holds what cannot be sent."""
        return None, {
            field.name: None if field.name == "_network" else getattr(self, field.name) for field in fields(self)
        }

    def network(self) -> Network:
        """Return the subject's network, taken apart."""
        if self._network is None:
            self._network = network_of(self.subject.classifier)
        return self._network

    def forget(self) -> None:
        """Free the memory of the network's recorded runs, which a weaker method needs."""
        self._network = None

    def session(self, indices: Tensor) -> Session:
        """Return a session on the samples `indices` (n,); their time begins."""
        started = time.monotonic()
        late = min(self.deadline.here(), started + float(self.seconds[indices].sum()))
        return Session(self, indices, started, _After(late))


@dataclass(slots=True)
class Session:
    """The search of a group of samples, `indices` (n,).

    started: time.monotonic() of its begin. interrupted: time was over in the middle of something. short: memory did not hold
    a single sample.
    """

    searcher: Searcher
    indices: Tensor
    started: float
    expired: _After
    interrupted: bool = False
    short: bool = False

    @property
    def late(self) -> bool:
        """Return whether what is not decided is so for want of time."""
        return self.interrupted or self.expired.over or time.monotonic() > self.expired.late

    def region(self, at: Tensor, epsilon: float | Tensor) -> BallRegions:
        """Return the balls around the group's samples `at` (m,), of `epsilon`, one for all or one for each of them."""
        subject = self.searcher.subject
        inputs = subject.dataset.inputs[self.indices[at]]
        return BallRegions.around(inputs, self.searcher.norm, epsilon, subject.classifier.device)

    def decide(self, at: Tensor, region: BallRegions, larger: Mapping[int, Inner] = NOTHING) -> Decided | None:
        """Branch and bound of the group's samples `at` in their `region`; `larger` as `decide` takes it.

        None where time or memory is out in the middle of something, so that nothing is known.
        """
        subject, params, device = self.searcher.subject, self.searcher.params, region.centre.device
        targets = subject.dataset.targets[self.indices[at]]
        goals = torch.full((len(at),), self.searcher.lead, dtype=torch.float64)
        try:
            with time_limit(self.expired.late), memory_limit(memory_to_use(device), device):
                network = self.searcher.network()
                check, limits = _confirms(network, subject.classifier, targets), limits_of(params, network)
                return decide(network, region, targets, goals, check, limits, self.expired, larger)
        except OutOfTimeError:
            self.interrupted = True
        except (RuntimeError, MemoryError) as error:
            if len(self.indices) > 1 or not out_of_memory(error):
                raise
            self.searcher.forget()
            self.short = True
        return None


class _After:
    """Return whether the next step, taken to be as long as the last, would overrun the deadline."""

    def __init__(self, late: float) -> None:
        self.late, self._asked, self.over = late, time.monotonic(), False
        self._most = _UNUSED * (late - self._asked)

    def __call__(self) -> bool:
        now = time.monotonic()
        took, self._asked = min(now - self._asked, self._most), now
        self.over = self.over or now + took > self.late
        return self.over


def _confirms(network: Network, classifier: Classifier, targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Confirm counterexamples by the classifier itself.

    What leads in float64 here is a counter-example if it is one by the classifier itself, in the precision it has.
    """

    def check(points: Tensor, sample: Tensor) -> Tensor:
        inputs = points.view(-1, *network.input_shape)
        labels = targets.to(sample.device)[sample][:, None]
        logits = network.logits(inputs)
        is_broken = logits.scatter(1, labels, -torch.inf).amax(1) > logits.gather(1, labels).squeeze(1)
        if bool(is_broken.any()):
            is_broken[is_broken.clone()] = confirmed(
                classifier, inputs[is_broken].float(), labels[is_broken, 0].cpu()
            ).to(is_broken.device)
        return is_broken

    return check
