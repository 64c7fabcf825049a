"""The step that searches: branch and bound of our own, a group of samples at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from windtunnel.assessments.verification.bound_step import bound
from windtunnel.assessments.verification.branch_and_bound.decide import Decided, decide
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.regions import Region
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.falsifier import ROUNDING, confirmed
from windtunnel.assessments.verification.ledger import Ledger
from windtunnel.assessments.verification.limits import time_limit
from windtunnel.assessments.verification.step import Step, Trial
from windtunnel.assessments.verification.task import Task
from windtunnel.core.batches import progress_bar
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Caveat
from windtunnel.core.errors import IncompatibleError
from windtunnel.params.verification import BranchAndBound

# An accelerator is busy with several samples at once; on a CPU one after the other is as quick, and lighter.
_TOGETHER = 8
_FLOAT = 4  # bytes
_COPIES = 12  # of all activations of a row, at the peak of a bounding pass
_WEAKER = "alpha-crown"
_MOST_ROWS = 256  # on a CPU more do not go faster


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

    Raises IncompatibleError for a model that it has no bounds for.
    """
    subject, entry, deadline = task.subject, task.entry, task.deadline
    data, lead = subject.dataset, task.lead(SEARCH.tolerance)
    network = network_of(subject.classifier)
    params = BranchAndBound.model_validate(entry.params)
    limits = limits_of(params, network)
    indices = ledger.undecided
    exhausted: list[int] = []
    undecidable: list[int] = []
    with progress_bar() as progress:
        bar = progress.add_task(f"{task.name} {step}", total=len(indices))
        for rows in indices.split(1 if network.device.type == "cpu" else _TOGETHER):
            if time.monotonic() > deadline:
                return
            started = time.monotonic()
            late = min(deadline, started + float(ledger.seconds_left(rows, entry.timeout).sum()))
            region = Region.around(data.inputs[rows], task.norm, task.epsilon, network.device)
            targets = data.targets[rows]
            goals = torch.full((len(rows),), lead, dtype=torch.float64)
            found = decide(network, region, targets, goals, _confirms(network, subject.classifier, targets), limits,
                           _after(late))  # fmt: skip
            _enter(found, rows, step, ledger, data.inputs)
            ledger.seconds[rows] += (time.monotonic() - started) / len(rows)
            if time.monotonic() > late:
                ledger.timed_out[rows[found.exhausted]] = True
            else:
                exhausted += rows[found.exhausted].tolist()
            settled = found.verified | found.exhausted
            settled[list(found.examples)] = True
            undecidable += rows[~settled].tolist()
            progress.advance(bar, len(rows))
    for code, text, some in (
        ("work_limit", f"{step} ended at its limit of {limits.domains} subdomains for a sample", exhausted),
        ("undecided", f"{step}: what is left cannot be split further, or a class draws level", undecidable),
    ):
        if some:
            ids = tuple(data.ids[i] for i in some)
            ledger.caveats.append(Caveat(code, f"{text}: {len(some)} samples are undecided by it.", ids))


def _after(late: float) -> Callable[[], bool]:
    return lambda: time.monotonic() > late


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


def _enter(found: Decided, rows: Tensor, step: str, ledger: Ledger, inputs: Tensor) -> None:
    nothing = torch.full((len(rows), ledger.lower.shape[1]), torch.nan)
    known = found.bounds.amin(1)
    ledger.bound(rows, torch.where(known.isfinite(), known, torch.nan).float(), nothing, nothing)
    ledger.verify(rows[found.verified], step)
    for i, point in found.examples.items():
        ledger.falsify(rows[i : i + 1], point.float().cpu().view(1, *inputs.shape[1:]), step)
    ledger.subdomains[rows] += found.domains


def _attempt(step: str, trial: Trial) -> None:
    with time_limit(trial.bounder.deadline):
        network_of(trial.canonical.subject.classifier)


def _call(step: str, task: Task) -> Mapping[str, object]:
    data, limits = task.subject.dataset, BranchAndBound.model_validate(task.entry.params).model_dump(mode="json")
    return {"inputs": data.inputs, "targets": data.targets, "epsilon": task.epsilon, **limits}


SEARCH = Step(search_or_bound, _call, ROUNDING, _attempt)
