"""The steps a verification is made of. A single verifier is a cascade of one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.core.batches import progress_bar
from windtunnel.core.contracts import Caveat, Norm, Verdict
from windtunnel.core.errors import IncompatibleError
from windtunnel.core.seeds import derive_seed
from windtunnel.core.subject import Subject
from windtunnel.models.load import export_onnx
from windtunnel.params.verification import VerificationEntry
from windtunnel.verification.falsifier import falsify
from windtunnel.verification.ledger import Ledger
from windtunnel.verification.lirpa import bound_batch
from windtunnel.verification.marabou import check_equivalence, queries_of, replay, solve_all

# A method that cannot hold its memory gives way to the next one down, and says so.
_WEAKER = {"alpha-crown": "crown", "crown": "crown-ibp", "crown-ibp": "ibp"}


@dataclass(frozen=True, slots=True)
class Task:
    """What every step is given: the region, the subject, the entry's options, and the assessment's name."""

    name: str
    subject: Subject
    norm: Norm
    epsilon: float
    entry: VerificationEntry


def run_step(step: str, ledger: Ledger, task: Task) -> None:
    """Let `step` decide what it can of the samples that are undecided."""
    if len(ledger.undecided):
        _STEPS.get(step, _bound)(step, ledger, task)


def _attack(step: str, ledger: Ledger, task: Task) -> None:
    for part in ledger.undecided.split(256):
        started = time.perf_counter()
        inputs, targets = task.subject.dataset.inputs[part], task.subject.dataset.targets[part]
        seed = derive_seed(task.subject.seed, task.name, "attack", int(part[0]))
        found, examples = falsify(task.subject.classifier, inputs, targets, task.epsilon, seed, task.norm)
        ledger.falsify(part[found], examples[found], step)
        ledger.seconds[part] += (time.perf_counter() - started) / len(part)


def _bound(step: str, ledger: Ledger, task: Task) -> None:
    indices = ledger.undecided
    with progress_bar() as progress:
        bar = progress.add_task(f"{task.name} {step}", total=len(indices))
        for part in indices.split(task.entry.batch_size):
            started = time.perf_counter()
            _bound_part(step, part, ledger, task)
            ledger.seconds[part] += (time.perf_counter() - started) / len(part)
            progress.advance(bar, len(part))


def _bound_part(step: str, part: Tensor, ledger: Ledger, task: Task) -> None:
    subject = task.subject
    try:
        bounds = bound_batch(
            subject.classifier,
            subject.dataset.inputs[part],
            subject.dataset.targets[part],
            task.norm,
            task.epsilon,
            step,
        )
    except (torch.OutOfMemoryError, MemoryError):
        if len(part) > 1:
            ledger.caveats.append(Caveat("smaller_batch", f"{step} ran out of memory on {len(part)} samples; halved."))
            for half in part.tensor_split(2):
                _bound_part(step, half, ledger, task)
        elif weaker := _WEAKER.get(step):
            ledger.caveats.append(
                Caveat("weaker_method", f"{step} ran out of memory on one sample; {weaker} was used.")
            )
            _bound_part(weaker, part, ledger, task)
        else:
            ledger.fail(int(part[0]), step)
        return
    worst = bounds.worst_margin
    ledger.lower_margins[part] = torch.fmax(ledger.lower_margins[part], worst)
    ledger.lower[part], ledger.upper[part] = bounds.lower, bounds.upper
    ledger.verify(part[worst > 0], step)


def _marabou(step: str, ledger: Ledger, task: Task) -> None:
    subject, data = task.subject, task.subject.dataset
    with tempfile.TemporaryDirectory() as folder:
        onnx = subject.classifier.onnx_path or _exported(subject, Path(folder) / "model.onnx")
        check_equivalence(subject.classifier, onnx, data.inputs)
        indices = ledger.undecided.tolist()
        queries = {q.index: q for q in queries_of(data.inputs, data.targets, task.epsilon, data.num_classes, indices)}
        answers = solve_all(
            onnx, list(queries.values()), task.entry.timeout, task.entry.workers, task.entry.time_budget, task.name
        )
        shape = tuple(data.inputs.shape[1:])
        for answer in answers:
            ledger.seconds[answer.index] += answer.seconds
            at = torch.tensor([answer.index])
            if answer.verdict is Verdict.VERIFIED:
                ledger.verify(at, step)
            elif answer.verdict is Verdict.FALSIFIED and answer.counter_example is not None:
                wrong = replay(subject.classifier, onnx, queries[answer.index], answer.counter_example, shape)
                if wrong:
                    ledger.fail(answer.index, step)
                    ledger.caveats.append(
                        Caveat("false_counter_example", f"Marabou: {wrong}.", (data.ids[answer.index],))
                    )
                else:
                    ledger.falsify(at, torch.from_numpy(answer.counter_example).view(1, *shape).clamp(0, 1), step)
            elif answer.verdict is Verdict.ERROR:
                ledger.fail(answer.index, step)
                ledger.caveats.append(Caveat("solver_error", f"Marabou: {answer.reason}.", (data.ids[answer.index],)))
        late = tuple(data.ids[a.index] for a in answers if a.reason in {"time-out", "time budget"})
        if late:
            ledger.timeouts += len(late)
            text = f"Marabou did not decide {len(late)} samples in time; another machine may decide more or fewer."
            ledger.caveats.append(Caveat("time_out", text, late))


def _exported(subject: Subject, path: Path) -> Path:
    try:
        return export_onnx(subject.classifier, path)
    except Exception as error:  # the exporter raises many kinds for what it cannot trace
        raise IncompatibleError(
            f"{subject.classifier.source} cannot be exported as ONNX ({type(error).__name__}: {error})"
        ) from error


_STEPS: dict[str, Callable[[str, Ledger, Task], None]] = {"attack": _attack, "marabou": _marabou}
