"""Caveats on the numbers of an attack, in words for the reader of a report."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from windtunnel.assessments.attacks.plan import PlannedAttack
from windtunnel.assessments.attacks.rows import Invoker
from windtunnel.assessments.attacks.survivors import Prior
from windtunnel.core.contracts import Caveat, PerturbationBudget
from windtunnel.core.subject import Subject
from windtunnel.records.result import Tensors, tensor_in


def caveats_of(
    budget: PerturbationBudget,
    runs: Sequence[PlannedAttack],
    beyond: Tensor,
    repaired: Tensor,
    data: Tensors,
    subject: Subject,
    before: Prior,
) -> Iterator[Caveat]:
    """Yield the caveats of one attack; beyond, repaired: bool (N,), what its library returned (see `Judgement`)."""
    invokers = {run.row.invoker for run in runs}
    is_bounded = any(run.row.epsilon and not run.row.algorithm.minimum_norm for run in runs)
    finds = any(not run.row.epsilon or run.row.algorithm.minimum_norm for run in runs)
    if beyond.any():
        fate = "projected back and evaluated" if is_bounded and not finds else "counted as failures"
        yield Caveat(
            "beyond_budget",
            f"The attack moved {int(beyond.sum())} samples further than {budget.norm} {budget.epsilon or 0:.6g}; they "
            f"were {fate}.",
            _names(beyond, subject) if is_bounded else (),
        )
    if repaired.any():
        yield Caveat(
            "not_finite",
            f"The library returned values that are not finite for {int(repaired.sum())} samples: failures.",
            _names(repaired, subject),
        )
    yield from nothing_attacked(data)
    if before.by:
        yield Caveat(
            "survivors_only",
            f"Attacked only the samples that survived {', '.join(before.by)}: attack_success_rate is over these samples, "
            f"adversarial_accuracy is the worst case over all these attacks together.",
        )
    if before.certified_by:
        yield Caveat(
            "uncertified_only",
            f"Attacked only the samples that {', '.join(before.certified_by)} did not certify: attack_success_rate is over "
            f"these samples; the {int(before.certified.sum())} certified ones count as robust in adversarial_accuracy.",
        )
    yield from target_is_label(data)
    if subject.dataset.inputs.shape[1] == 1 and any(run.row.three_channels for run in runs):
        yield Caveat(
            "grey_as_three_channels", "The attack needs three channels: the grey image was repeated three times."
        )
    yield from (_INVOKER_CAVEATS[i] for i in sorted(invokers) if i in _INVOKER_CAVEATS)


_INVOKER_CAVEATS = {
    Invoker.NEXT_CLASS: Caveat(
        "aims_at_next_class",
        "The attack is always targeted: without target classes it aims at the next class; any wrong class counts.",
    ),
    Invoker.POOL: Caveat("pool_is_assessed_samples", "The examples are other samples of the assessed data, unchanged."),
    Invoker.SURROGATES: Caveat(
        "surrogates_on_assessed_samples",
        "The surrogates were trained on the assessed samples, which gives the attacker an advantage.",
    ),
    Invoker.UNBOUNDED: Caveat(
        "no_norm_bound",
        "The attack limits its own parameters, not a norm. A success counts towards a budget only if its example lies "
        "within it.",
    ),
}


def nothing_attacked(data: Tensors) -> Iterator[Caveat]:
    """Yield that no sample was attacked, where it is so."""
    if not tensor_in(data, "attacked").any():
        yield Caveat("nothing_attacked", "No sample was left to attack: the rates over attacked samples are empty.")


def target_is_label(data: Tensors) -> Iterator[Caveat]:
    """Yield how many samples have their label as the target class, where there are any."""
    if "target_classes" in data and (n := int((tensor_in(data, "target_classes") == tensor_in(data, "targets")).sum())):
        yield Caveat("target_is_label", f"{n} samples have the target as their label; they were not attacked.")


def _names(mask: Tensor, subject: Subject) -> tuple[str, ...]:
    return tuple(subject.dataset.ids[i] for i in mask.nonzero().flatten().tolist()[:50])
