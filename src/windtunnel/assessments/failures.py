"""An entry that fails at run time: it is recorded with its reason, and the rest of the run continues."""

import math
import traceback
from collections.abc import Iterator

import torch

from windtunnel.assessments.catalogue import find_algorithm
from windtunnel.assessments.corrupted import names_of_images
from windtunnel.assessments.task import Task
from windtunnel.core.batches import LOST_SAMPLES, out_of_memory
from windtunnel.core.contracts import (
    AssessmentKind,
    CorruptedBudget,
    PerturbationBudget,
    PerturbationDistribution,
    Semantics,
    Verdict,
)
from windtunnel.core.errors import InfrastructureError, PrerequisiteError, UserError
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject
from windtunnel.params.entry import Entry
from windtunnel.records.artifacts import base_data, base_kwargs
from windtunnel.records.metadata import Failure
from windtunnel.records.result import AssessmentResult, Tensors
from windtunnel.records.run_times import RUN_TIMES
from windtunnel.registry.plugins import libraries
from windtunnel.runtime.console import warn
from windtunnel.runtime.shutdown import as_user_error, is_ending, is_of_the_disk

# An OSError that every run repeats; others (a connection, a time-out, a pipe) may not come again.
_EVERY_TIME = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)


def failure_of(error: Exception | SystemExit, where: str, *, is_quiet: bool = False) -> Failure:
    """Return why an entry failed, and print that on stderr unless `is_quiet`.

    Raises the error again where it must stop the run: an interruption, a disk that takes no more, a result of another
    stage that is not there.
    """
    if is_ending() or isinstance(error, PrerequisiteError) or is_of_the_disk(error):
        raise error
    user_error = (
        UserError(f"called sys.exit({error.code!r})") if isinstance(error, SystemExit) else as_user_error(error)
    )
    if user_error is None:
        traceback.print_exception(error)
        text = (str(error).strip() or "no reason given").splitlines()[0][:300]
        user_error = UserError(f"{type(error).__name__}: {text}")
    reason = str(user_error).removeprefix(f"{where}: ")
    failure = Failure(reason=reason, is_temporary=any(_may_pass(cause) for cause in (user_error, *_causes(error))))
    again = "; it runs again at the next dvc repro" if failure.is_temporary else ""
    if not is_quiet:
        warn(f"{where}: has no result, the rest of the run continues: {reason}{again}")
    return failure


def failed_result(task: Task[Entry], family: str, failure: Failure) -> AssessmentResult:
    """Return the result of an entry that failed: the contract's keys, the verdict `error` for every sample, no rates."""
    subject, entry = task.subject, task.entry
    row = find_algorithm(entry.library, entry.algorithm, task.where, family)
    epsilon = None if math.isnan(task.budget.epsilon) else task.budget.epsilon
    sampling = row.kind is AssessmentKind.STATISTICAL_SAMPLING
    norm = row.norm or task.budget.norm
    region: PerturbationDistribution | PerturbationBudget
    if sampling:
        region = PerturbationDistribution(row.name)
    elif entry.corrupted_by:
        region = CorruptedBudget(norm, epsilon, corruption_name=names_of_images(entry))
    else:
        region = PerturbationBudget(norm, epsilon)
    n = len(subject.dataset)
    library = libraries(family).get(entry.library)
    return AssessmentResult(
        name=task.name,
        semantics=Semantics(row, region),
        data={**base_data(subject, torch.full((n,), int(Verdict.ERROR))), **_nothing_found(row.kind, subject)},
        metrics={**binomial_rate(int(subject.clean_correct.sum()), n).metrics("clean_accuracy"), "n_samples": n},
        kwargs=base_kwargs(subject),
        library_package=library.package if library else None,
        failure=failure,
    )


def may_run_again(result: AssessmentResult) -> bool:
    """Return True where an entry, or some samples of it, have no result for a reason that may pass."""
    return bool(result.failure and result.failure.is_temporary) or any(c.code == LOST_SAMPLES for c in result.caveats)


def _nothing_found(kind: AssessmentKind, subject: Subject) -> Tensors:
    """Return the tensors of the contract for an entry without results: clean inputs and no bounds."""
    n = len(subject.dataset)
    if kind is AssessmentKind.EMPIRICAL_ATTACK:
        return {
            "perturbed_inputs": subject.dataset.inputs,
            "perturbed_predictions": subject.clean_predictions,
            "perturbation_distance": torch.zeros(n),
        }
    if kind is AssessmentKind.FORMAL_VERIFICATION:
        unknown = torch.full_like(subject.clean_logits, torch.nan)
        return {"output_bounds": {"lower": unknown, "upper": unknown.clone()}, RUN_TIMES: torch.full((n,), torch.nan)}
    return {}


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, InfrastructureError) or (isinstance(error, OSError) and not isinstance(error, _EVERY_TIME)):
        return True
    return isinstance(error, Exception) and out_of_memory(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__
