"""Report section of a family: the question that its assessments answer, and the numbers that answer it.

A family returns its own (`Family.report_section`); by default it answers the question of its kind, with the numbers of that kind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel.core.contracts import AssessmentKind

# Of several metrics, or of the tensors: no key of the metrics.
CONFIDENCE = "confidence when wrong"
COST = "cost"
TWO_PHASE = (
    "accuracy over all assessed samples, of which a random part of those left undecided by earlier entries was tried "
    "(double sampling for stratification)"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column. form: `rate` with its interval, `share` without one, `plain` for what is no share.

    `means`: what an abbreviation stands for, said below the table where it first appears.
    """

    words: str
    metric: str
    form: Literal["rate", "share", "plain"]
    means: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A section of the report. order: its place. note: how its numbers are to be read.

    compared: (assessments, inputs of the report) -> blocks that compare them, below the tables. last: (inputs, options) -> blocks at
    the end. The report has its own for the questions below.
    """

    words: str
    order: int
    note: str
    compared: Callable[..., Iterable[Any]] | None = None
    last: Callable[..., Iterable[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """Report section of a family. A column that no assessment fills is left out. `beside`: columns of a second table, of what the
    first rests on. meanings: what the short names among the metrics stand for, a line each, for whoever lists them all.
    """

    question: Question
    columns: tuple[Column, ...]
    beside: tuple[Column, ...] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)


BROKEN = Question(
    "What breaks it, and at what cost?",
    10,
    "Accuracy here is the share of all samples that no attack broke: an upper bound of the true robust accuracy, never a "
    "certificate. Success is the share of correctly classified samples that were broken. Compare rows of one budget only.",
)
VERIFIED = Question(
    "What is verified, and by which method?",
    20,
    "Certified: no change within the budget can alter the correct prediction. Falsified: a counterexample is known, or the "
    "clean prediction is wrong. Unknown means that the verifier did not decide the sample within its limits.",
)
AVERAGE = Question(
    "How does it do under everyday disturbances?",
    30,
    "Accuracy is averaged over random corruptions; it does not bound the worst case.",
)
OF_KIND = {
    AssessmentKind.EMPIRICAL_ATTACK: Reported(
        BROKEN,
        (
            Column("robust accuracy", "adversarial_accuracy", "rate"),
            Column("of all, in two phases", "two_phase_accuracy", "rate", TWO_PHASE),
            Column("success", "attack_success_rate", "share"),
            Column("median distance", "median_distance", "plain"),
            Column(CONFIDENCE, CONFIDENCE, "share"),
            Column("cost a sample", COST, "plain"),
        ),
        meanings={
            "queries_succ_mean": "mean number of queries of a success",
            "median_critical_epsilon": "half of the samples are broken at a smaller epsilon of the sweep",
            "area_under_curve": "mean accuracy over the sweep's epsilons, by the trapezoid rule",
        },
    ),
    AssessmentKind.FORMAL_VERIFICATION: Reported(
        VERIFIED,
        (
            Column("certified", "certified_accuracy", "rate"),
            Column("falsified", "falsified_rate", "share"),
            Column("unknown", "unknown_rate", "share"),
            Column("error", "error_rate", "share"),
        ),
    ),
    AssessmentKind.STATISTICAL_SAMPLING: Reported(AVERAGE, (Column("mean accuracy", "corrupted_accuracy", "rate"),)),
}
