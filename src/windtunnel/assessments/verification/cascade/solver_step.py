"""The step that asks Marabou: what it answers enters the ledger only after it was checked."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from windtunnel.assessments.verification.canonical.subject import MEASURED, Canonical, canonical_subject, slack_of
from windtunnel.assessments.verification.cascade.step import Step, Trial
from windtunnel.assessments.verification.cascade.task import Ledger, VerificationTask
from windtunnel.assessments.verification.marabou import onnx_graph
from windtunnel.assessments.verification.marabou.queries import (
    CLEAR_LEAD,
    MARABOU_TOLERANCE,
    box,
    check_equivalence,
    queries_of,
    replay,
    solve_all,
)
from windtunnel.assessments.verification.marabou.worker import Query, SolverAnswer
from windtunnel.boundary.models.load import export_onnx
from windtunnel.boundary.models.onnx_network import OnnxNetwork
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability, Caveat, Verdict
from windtunnel.core.errors import IncompatibleError, OutOfTimeError
from windtunnel.core.machine import time_limit
from windtunnel.core.scratch import of_shape_for
from windtunnel.core.subject import Subject, subject_of

LATE = frozenset({"time-out", "time budget"})

_AGREEMENT = 1e-4  # of the logits' unit: by how much an ONNX file and its form in torch may differ
_LEAST = 1.0  # seconds that are worth a query: Marabou counts whole ones


def solve(step: str, ledger: Ledger, task: VerificationTask) -> None:
    """Let Marabou decide the undecided samples until the task's deadline.

    Raises IncompatibleError where the graph it is given is not the model, or has values that its tolerances cannot tell;
    OutOfTimeError where no time is left for a query.
    """
    canonical, entry, data = task.canonical, task.entry, task.subject.dataset
    indices, least = ledger.undecided, min(_LEAST, entry.solver_timeout)
    seconds_left = ledger.seconds_left(entry.timeout)[indices]
    late = seconds_left.clamp(max=task.time_left) < least
    ledger.timed_out[indices[late]] = True
    indices, seconds_left = indices[~late], seconds_left[~late]
    if not len(indices):
        return
    with tempfile.TemporaryDirectory() as folder:
        with time_limit(task.deadline):
            onnx, slack, solved = graph_for_marabou(canonical, ledger.subject.classifier, Path(folder))
        if task.time_left < least:
            raise OutOfTimeError
        one_by_one = entry.other_classes == "one_by_one"
        without_limits = queries_of(solved.subject, task.epsilon, indices, one_by_one=one_by_one, slack=slack)
        all_queries = [
            replace(query, seconds=seconds, bounds=entry.output_bounds)
            for query, seconds in zip(without_limits, seconds_left.tolist(), strict=True)
        ]
        queries = {query.index: query for query in all_queries}
        shape = tuple(data.inputs.shape[1:])

        def ask(queries: list[Query], what: str) -> list[SolverAnswer]:
            checkpoint = task.checkpoint(step, what)  # what is decided stands, whoever else is asked about
            return solve_all(onnx, queries, entry.solver_timeout, task.deadline, task.name, checkpoint)

        answers = ask(all_queries, "first")
        examples = {a.index: a.counter_example for a in answers if a.counter_example is not None}
        ties = [
            i for i, example in examples.items() if replay(solved.subject.classifier, onnx, queries[i], example, shape)
        ]
        if ties:
            repeated = ask([replace(queries[i], margin=CLEAR_LEAD, bounds=False) for i in ties], "clear lead")
            # Without a clear lead nothing is verified and nothing is broken: the sample stays undecided, at a tie.
            clear = {a.index: a if a.verdict is Verdict.FALSIFIED else _tie(a) for a in repeated}
            answers = [clear.get(a.index, a) for a in answers]
        for answer in answers:
            if solved is not canonical and answer.lower is not None and answer.upper is not None:
                ends = solved.outputs(torch.from_numpy(answer.lower), torch.from_numpy(answer.upper)).values()
                low, high = (((end - canonical.offset) / canonical.unit).numpy() for end in ends)
                answer = replace(answer, lower=low, upper=high)
            _enter(answer, step, ledger, solved.subject, onnx, queries[answer.index])


def _tie(answer: SolverAnswer) -> SolverAnswer:
    if answer.verdict is not Verdict.VERIFIED:
        return answer
    return replace(answer, verdict=Verdict.UNKNOWN, reason=f"another class draws level within {CLEAR_LEAD:g}")


def _enter(answer: SolverAnswer, step: str, ledger: Ledger, subject: Subject, onnx: Path, query: Query) -> None:
    """Write one answer of the solver into the ledger; a counter-example only after both runtimes confirm it."""
    sample, shape = (subject.dataset.ids[answer.index],), tuple(subject.dataset.inputs.shape[1:])
    at = torch.tensor([answer.index])
    ledger.seconds[answer.index] += answer.seconds
    if answer.lower is not None and answer.upper is not None:
        ledger.bound(at, torch.tensor([torch.nan]), torch.from_numpy(answer.lower), torch.from_numpy(answer.upper))
    if answer.verdict is Verdict.VERIFIED:
        ledger.verify(at, step)
    elif answer.verdict is Verdict.FALSIFIED and answer.counter_example is not None:
        wrong = replay(subject.classifier, onnx, query, answer.counter_example, shape)
        if wrong:
            ledger.fail(answer.index, step)
            ledger.caveats.append(Caveat("false_counter_example", f"Marabou: {wrong}.", sample))
        else:
            example = torch.from_numpy(answer.counter_example).view(1, *shape).clamp(0, 1)
            if not ledger.falsify(at, example, step):
                text = "Marabou: another class leads at the counter-example, but for rounding in the model itself."
                ledger.caveats.append(Caveat("undecided", text, sample))
    elif answer.verdict is Verdict.ERROR:
        ledger.fail(answer.index, step)
        ledger.caveats.append(Caveat("solver_error", f"Marabou: {answer.reason}.", sample))
    elif answer.reason in LATE:
        ledger.timed_out[answer.index] = True
    else:
        ledger.caveats.append(Caveat("undecided", f"Marabou: {answer.reason}.", sample))


def graph_for_marabou(canonical: Canonical, classifier: Classifier, folder: Path) -> tuple[Path, float, Canonical]:
    """Return the graph for Marabou, its slack, and the canonical network that it was exported from.

    Of an ONNX file without gradients that is the network of the file's torch form, less a softmax at its end.

    Raises IncompatibleError where it is not the model, or has operators or values that Marabou cannot deal with.
    """
    solved = canonical
    if classifier.onnx_path and Capability.AUTOGRAD not in classifier.capabilities:
        read = OnnxNetwork(classifier.onnx_path).eval().requires_grad_(False)
        torch_form = replace(classifier, module=read, capabilities=frozenset(Capability))
        solved = canonical_subject(subject_of(torch_form, canonical.subject.dataset))
    network, inputs = solved.subject.classifier, solved.subject.dataset.inputs
    onnx_graph.check_layers(network.module)
    onnx = export_onnx(network, folder / "model.onnx")
    slack = max(solved.slack, slack_of(check_equivalence(network, onnx, inputs)))
    if solved is not canonical:
        apart = solved.distance(classifier.logits(inputs))
        if not apart <= _AGREEMENT:
            raise IncompatibleError(
                f"{classifier.source} differs from its form in torch by {apart:.3g} of its logits' range"
            )
        slack += slack_of(apart)
    onnx_graph.check_operators(onnx, network.module)
    onnx_graph.check_scale(onnx, inputs[:MEASURED])
    return onnx, slack, solved


def _attempt(step: str, trial: Trial) -> None:
    with tempfile.TemporaryDirectory() as folder, time_limit(trial.bounder.deadline):
        graph_for_marabou(trial.canonical, trial.given, Path(folder))


def _call(step: str, task: VerificationTask) -> Mapping[str, object]:
    data = task.subject.dataset
    lower, upper = box(data.inputs[:1], task.epsilon)
    return {
        "lower": of_shape_for(len(data), lower),
        "upper": of_shape_for(len(data), upper),
        "epsilon": task.epsilon,
        "timeoutInSeconds": task.entry.solver_timeout,
        "verbosity": 0,
        "other_classes": task.entry.other_classes,
        "output_bounds": task.entry.output_bounds,
    }


_OPTIONS = frozenset({"timeout", "other_classes", "output_bounds"})
MARABOU = Step(solve, _call, MARABOU_TOLERANCE, _attempt, options=_OPTIONS)
