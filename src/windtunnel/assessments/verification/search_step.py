"""The step that searches: branch and bound of our own, a group of samples at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_step import bound
from windtunnel.assessments.verification.branch_and_bound.decide import decide
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.deadline import Deadline
from windtunnel.assessments.verification.falsifier import ROUNDING, confirmed
from windtunnel.assessments.verification.ledger import Ledger
from windtunnel.assessments.verification.limits import OutOfTimeError, memory_limit, time_limit
from windtunnel.assessments.verification.memory import memory_to_use
from windtunnel.assessments.verification.solver_process import corner
from windtunnel.assessments.verification.step import Step, Trial, step_of
from windtunnel.assessments.verification.task import Task
from windtunnel.core.batches import Batch, each_batch, out_of_memory
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Caveat, Norm
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.subject import Subject
from windtunnel.params.verification import BranchAndBound

# An accelerator is busy with several samples at once; on a CPU one after the other is as quick, and lighter.
_TOGETHER = 8
_FLOAT = 4  # bytes
_COPIES = 12  # of all activations of a row, at the peak of a bounding pass
_WEAKER = "alpha-crown"
_MOST_ROWS = 256  # on a CPU more do not go faster
_MOST_INNER = 4096  # units: a solver decides nothing larger, and bounds are kept of every sample
_UNUSED = 0.05  # of its time a search leaves at most, so that what it found last is kept
_FLAGS = ("verified", "exhausted", "late", "undecidable", "short")


def network_of(classifier: Classifier) -> Network:
    """The classifier's module, taken apart. Raises IncompatibleError naming the operator that has no linear bounds."""
    return Network(classifier.module, classifier.input_shape, classifier.device)


def limits_of(params: BranchAndBound, network: Network) -> Limits:
    """How much work a sample may cost; how many rows go together follows from the memory allowed and the network alone."""
    memory = params.memory * 2**20
    rows = memory // (_COPIES * _FLOAT * network.width)
    most = _MOST_ROWS if network.device.type == "cpu" else 16 * _MOST_ROWS
    return Limits(params.domains, params.iterations, params.batch, memory, max(2, min(most, rows)))


def search_or_bound(step: str, ledger: Ledger, task: Task) -> None:
    """Search; what has no bound for an operator here gives way to the next method down, as among the bound methods."""
    try:
        search(step, ledger, task)
    except IncompatibleError as error:
        left = tuple(task.subject.dataset.ids[i] for i in ledger.undecided.tolist())
        ledger.caveats.append(Caveat("weaker_method", f"{_WEAKER} was used instead of {step}: {error}.", left))
        bound(_WEAKER, ledger, task)


def search(step: str, ledger: Ledger, task: Task) -> None:
    """Let branch and bound decide the undecided samples until the task's deadline.

    Raises IncompatibleError for a model that it has no bounds for, OutOfTimeError where none is left to take it apart.
    """
    data = task.subject.dataset
    with time_limit(task.deadline):
        network = network_of(task.subject.classifier)
    params = BranchAndBound.model_validate(task.entry.params)
    indices, left = ledger.undecided, ledger.seconds_left(ledger.undecided, task.entry.timeout)
    seconds = torch.full((len(data),), torch.inf)
    seconds[indices] = left.to(seconds)
    units = sum(network.sizes) if _taken_later(step, task) else 0
    work = _Decide(
        task.subject, task.norm, task.epsilon, task.lead(SEARCH.tolerance), params, seconds, Deadline(task.deadline),
        units if units <= _MOST_INNER else 0,
    )  # fmt: skip
    parts = indices.split(1 if network.device.type == "cpu" else _TOGETHER)
    exhausted, undecidable, short = list[int](), list[int](), list[int]()
    for batch, found in each_batch(
        [Batch(number, part, 0) for number, part in enumerate(parts)], work, name=f"{task.name} {step}",
        checkpoint=task.checkpoint(ledger, step, indices.tolist()), without=work.nothing,
        incidents=task.bounder.incidents,
    ):  # fmt: skip
        members = batch.indices
        _enter(found, members, step, ledger, network.sizes)
        ledger.timed_out[members[found["late"]]] = True
        exhausted += members[found["exhausted"] & ~found["late"]].tolist()
        undecidable += members[found["undecidable"]].tolist()
        short += members[found["short"]].tolist()
        for index in members[found["failed"]].tolist():
            ledger.fail(index, step)
    for code, text, some in (
        ("work_limit", f"{step} ended at its limit of {params.domains} subdomains for a sample", exhausted),
        ("undecided", f"{step}: what is left cannot be split further, or a class draws level", undecidable),
    ):
        if some:
            ids = tuple(data.ids[i] for i in some)
            ledger.caveats.append(Caveat(code, f"{text}: {len(some)} samples are undecided by it.", ids))
    if short:
        task.bounder.gave_way(step, _WEAKER, "out of memory on one sample", short)
        bound(_WEAKER, ledger, task, torch.tensor(short))


def _taken_later(step: str, task: Task) -> bool:
    """Whether a step after this one goes on from bounds of the inputs of activations."""
    later = task.steps[task.steps.index(step) + 1 :] if step in task.steps else ()
    return any(step_of(name).takes_inner for name in later)


@dataclass(slots=True)
class _Decide:
    """A unit of work: branch and bound of a group of samples. The network is taken apart once in each process.

    inner: how many units' bounds it gives, all of the network's or 0 for none.
    """

    subject: Subject
    norm: Norm
    epsilon: float
    lead: float
    params: BranchAndBound
    seconds: Tensor
    deadline: Deadline
    inner: int
    _network: Network | None = None

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Without the network, which holds what cannot be sent."""
        return None, {
            field.name: None if field.name == "_network" else getattr(self, field.name) for field in fields(self)
        }

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        started, deadline, found = time.monotonic(), self.deadline.here(), self.nothing(batch)
        found["failed"][:] = False
        if started > deadline:
            found["late"][:] = found["exhausted"][:] = True
            return found
        data, indices, classifier = self.subject.dataset, batch.indices, self.subject.classifier
        targets, device = data.targets[indices], classifier.device
        late = min(deadline, started + float(self.seconds[indices].sum()))
        expired = _After(late)
        region = Region.around(data.inputs[indices], self.norm, self.epsilon, device)
        goals = torch.full((len(indices),), self.lead, dtype=torch.float64)
        try:
            with time_limit(late), memory_limit(memory_to_use(device), device):
                if self._network is None:
                    self._network = network_of(classifier)
                network = self._network
                decided = decide(network, region, targets, goals, _confirms(network, classifier, targets),
                                 limits_of(self.params, network), expired)  # fmt: skip
        except OutOfTimeError:  # in the last moment: what was known is lost
            found["late"][:] = found["exhausted"][:] = True
            return found
        except (RuntimeError, MemoryError) as error:
            if len(indices) > 1 or not out_of_memory(error):
                raise
            self._network = None  # its recorded runs hold memory, which the weaker method needs
            found["short"][:] = True
            return found
        for i, point in decided.examples.items():
            found["examples"][i] = point.float().cpu().view(data.inputs.shape[1:])
        if self.inner:
            _look_inside(found["inner"], decided.inner, network, region)
        broken = found["examples"].flatten(1).isfinite().all(1)
        known = decided.bounds.amin(1).cpu()
        return {
            **found,
            "margins": torch.where(known.isfinite(), known, torch.nan).float(),
            "verified": decided.verified.cpu(),
            "domains": decided.domains.cpu(),
            "exhausted": decided.exhausted.cpu(),
            "late": decided.exhausted.cpu() & (expired.over or time.monotonic() > late),
            "undecidable": ~(decided.verified | decided.exhausted).cpu() & ~broken,
            "seconds": torch.full((len(indices),), (time.monotonic() - started) / len(indices)),
        }

    def nothing(self, batch: Batch) -> dict[str, Tensor]:
        """What stands for a group of which nothing is known."""
        n, inputs = len(batch.indices), self.subject.dataset.inputs
        flags = {key: torch.zeros(n, dtype=torch.bool) for key in _FLAGS}
        return {
            **flags,
            "failed": torch.ones(n, dtype=torch.bool),
            "margins": torch.full((n,), torch.nan),
            "examples": torch.full((n, *inputs.shape[1:]), torch.nan),
            "domains": torch.zeros(n, dtype=torch.int64),
            "inner": torch.full((n, 4, self.inner), torch.nan),
            "seconds": torch.zeros(n),
        }


def _look_inside(
    into: Tensor, inner: Mapping[int, list[tuple[Tensor, Tensor]]], network: Network, region: Region
) -> None:
    """Write bounds of the inputs of all activations, and those inputs at two points by which others know the layers, as `Ledger.inner`."""
    for i, layers in inner.items():
        far = corner(*(ends[i].cpu().numpy() for ends in (region.low, region.high)))
        points = torch.stack([region.centre[i], torch.from_numpy(far).to(region.centre)])
        values = network.inputs_of_activations(points.view(-1, *network.input_shape)).cpu()
        into[i] = torch.stack([*(torch.cat(ends) for ends in zip(*layers, strict=True)), *values]).float()


class _After:
    """Whether time is over: another piece of work like the one since the last question would end too late, and what it found be lost."""

    def __init__(self, late: float) -> None:
        self._late, self._asked, self.over = late, time.monotonic(), False
        self._most = _UNUSED * (late - self._asked)

    def __call__(self) -> bool:
        now = time.monotonic()
        took, self._asked = min(now - self._asked, self._most), now
        self.over = self.over or now + took > self._late
        return self.over


def _confirms(network: Network, classifier: Classifier, targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What leads in float64 here is a counter-example if it is one by the classifier itself, in the precision it has."""

    def check(points: Tensor, sample: Tensor) -> Tensor:
        inputs = points.view(-1, *network.input_shape)
        own = targets.to(sample.device)[sample][:, None]
        logits = network.logits(inputs)
        found = logits.scatter(1, own, -torch.inf).amax(1) > logits.gather(1, own).squeeze(1)
        if bool(found.any()):
            found[found.clone()] = confirmed(classifier, inputs[found].float(), own[found, 0].cpu()).to(found.device)
        return found

    return check


def _enter(found: Mapping[str, Tensor], indices: Tensor, step: str, ledger: Ledger, sizes: list[int]) -> None:
    nothing = torch.full((len(indices), ledger.lower.shape[1]), torch.nan)
    ledger.bound(indices, found["margins"], nothing, nothing)
    ledger.verify(indices[found["verified"]], step)
    broken = found["examples"].flatten(1).isfinite().all(1)
    if broken.any():
        ledger.falsify(indices[broken], found["examples"][broken], step)
    ledger.subdomains[indices] += found["domains"]
    left = set(ledger.undecided.tolist())
    for index, inner in zip(indices.tolist(), found["inner"], strict=True):
        if index in left and inner.numel() and bool(inner.isfinite().all()):
            ledger.inner[index] = inner.split(sizes, 1)
    ledger.seconds[indices] += found["seconds"]


def _attempt(step: str, trial: Trial) -> None:
    with time_limit(trial.bounder.deadline):
        network_of(trial.canonical.subject.classifier)


def _call(step: str, task: Task) -> Mapping[str, object]:
    data, limits = task.subject.dataset, BranchAndBound.model_validate(task.entry.params).model_dump(mode="json")
    return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}


SEARCH = Step(search_or_bound, _call, ROUNDING, _attempt)
