"""Two-phase sampling: a cheap entry on all samples, an expensive one on a random part of what it left undecided.

Source: Cochran 1977, Sampling Techniques, chapter 12 (double sampling for stratification); see `core.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from windtunnel.assessments.task import Task
from windtunnel.core.contracts import Json
from windtunnel.core.statistics import two_phase_rate
from windtunnel.core.subject import Subject
from windtunnel.records.result import Tensors, tensors_in

if TYPE_CHECKING:
    from windtunnel.params.attacks import AttackEntry
    from windtunnel.params.verification import VerificationEntry

FIRST_PHASE = "first_phase"  # key of robustness_data.pt: {certified, undecided}, bool (A,) over all assessed samples


def first_phase(
    task: Task[AttackEntry] | Task[VerificationEntry], decided: Callable[[Subject], tuple[Tensor, Tensor]]
) -> Tensors:
    """Return what the entries that `task` is run on decided of all assessed samples; nothing without two phases.

    There are two phases where the entry draws its samples at random and each entry that it names is on all of them.
    decided: the samples of a subject that they broke and that they certified, bool (A,) each.
    """
    entry, all_samples = task.entry, task.all_samples
    if entry.samples.selection != "random" or len(task.subject.dataset) == len(all_samples.dataset):
        return {}
    named = [task.earlier[reference.name] for reference in (entry.on.references() if entry.on else ())]
    if not named:
        return {}
    if any({*all_samples.dataset.ids} - {*result.sample_names} for result in named):
        return {}
    broken, certified = decided(all_samples)
    certified = certified & ~broken & all_samples.clean_correct
    return {FIRST_PHASE: {"certified": certified, "undecided": all_samples.clean_correct & ~broken & ~certified}}


def two_phase_metrics(data: Mapping[str, Tensor | dict[str, Tensor]], tried: Tensor, robust: Tensor) -> dict[str, Json]:
    """`two_phase_accuracy`: the accuracy over all assessed samples, from both phases, with its interval.

    Args:
        data: of the entry; without `first_phase` there is nothing to return.
        tried: bool (n,), the entry's samples that the first phase left undecided and that have a result.
        robust: bool (n,), those that are robust, or certified, after the second phase.
    """
    if FIRST_PHASE not in data or not tried.any():
        return {}
    certified, undecided = (tensors_in(data, FIRST_PHASE)[key] for key in ("certified", "undecided"))
    rate = two_phase_rate(
        len(undecided), int(certified.sum()), int(undecided.sum()), int((tried & robust).sum()), int(tried.sum())
    )
    return {**rate.metrics("two_phase_accuracy"), "two_phase_n": rate.n, "two_phase_n_tried": int(tried.sum())}
