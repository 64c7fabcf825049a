"""The steps a verification is made of. A single verifier is a cascade of one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from windtunnel.verification.marabou import (
    CLEAR_LEAD,
    check_equivalence,
    queries_of,
    replay,
    solve_all,
)
from windtunnel.verification.solver_process import Answer, Query

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
        shape = tuple(data.inputs.shape[1:])
        answers = _solve(onnx, list(queries.values()), task)
        ties = [a.index for a in answers if (example := a.counter_example) is not None
                and replay(subject.classifier, onnx, queries[a.index], example, shape)]  # fmt: skip
        if ties:
            again = _solve(onnx, [replace(queries[i], margin=CLEAR_LEAD) for i in ties], task)
            # Without a clear lead nothing is proved and nothing is broken: the sample stays undecided, at a tie.
            clear = {a.index: a if a.verdict is Verdict.FALSIFIED else _tie(a) for a in again}
            answers = [clear.get(a.index, a) for a in answers]
        for answer in answers:
            _enter(answer, step, ledger, task, onnx, queries[answer.index])
        late = tuple(data.ids[a.index] for a in answers if a.reason in {"time-out", "time budget"})
        if late:
            ledger.timeouts += len(late)
            text = f"Marabou did not decide {len(late)} samples in time; another machine may decide more or fewer."
            ledger.caveats.append(Caveat("time_out", text, late))


def _solve(onnx: Path, queries: list[Query], task: Task) -> list[Answer]:
    return solve_all(onnx, queries, task.entry.timeout, task.entry.workers, task.entry.time_budget, task.name)


def _tie(answer: Answer) -> Answer:
    if answer.verdict is not Verdict.VERIFIED:
        return answer
    return replace(answer, verdict=Verdict.UNKNOWN, reason=f"a rival draws level within {CLEAR_LEAD:g}")


def _enter(answer: Answer, step: str, ledger: Ledger, task: Task, onnx: Path, query: Query) -> None:
    """Write one answer of the solver into the ledger; a counter-example only after both runtimes confirm it."""
    subject, sample = task.subject, (task.subject.dataset.ids[answer.index],)
    at, shape = torch.tensor([answer.index]), tuple(task.subject.dataset.inputs.shape[1:])
    ledger.seconds[answer.index] += answer.seconds
    if answer.verdict is Verdict.VERIFIED:
        ledger.verify(at, step)
    elif answer.verdict is Verdict.FALSIFIED and answer.counter_example is not None:
        wrong = replay(subject.classifier, onnx, query, answer.counter_example, shape)
        if wrong:
            ledger.fail(answer.index, step)
            ledger.caveats.append(Caveat("false_counter_example", f"Marabou: {wrong}.", sample))
        else:
            ledger.falsify(at, torch.from_numpy(answer.counter_example).view(1, *shape).clamp(0, 1), step)
    elif answer.verdict is Verdict.ERROR:
        ledger.fail(answer.index, step)
        ledger.caveats.append(Caveat("solver_error", f"Marabou: {answer.reason}.", sample))


def _exported(subject: Subject, path: Path) -> Path:
    try:
        return export_onnx(subject.classifier, path)
    except Exception as error:  # the exporter raises many kinds for what it cannot trace
        raise IncompatibleError(
            f"{subject.classifier.source} cannot be exported as ONNX ({type(error).__name__}: {error})"
        ) from error


_STEPS: dict[str, Callable[[str, Ledger, Task], None]] = {"attack": _attack, "marabou": _marabou}
