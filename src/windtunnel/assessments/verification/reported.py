"""Report section on verifications."""

from windtunnel.assessments.reported import OF_KIND, TWO_PHASE, Column, Reported
from windtunnel.core.contracts import AssessmentKind

_KIND = OF_KIND[AssessmentKind.FORMAL_VERIFICATION]
MEANINGS = {
    "mean_runtime": "seconds per sample on the machine that computed this result; not among DVC's outputs",
    "average_certified_radius": "mean over the samples of the largest epsilon verified, 0 where misclassified",
    "average_certified_radius_at_least": "lower bound of the average certified radius, from a search that timed out",
}
REPORTED = Reported(
    _KIND.question,
    (
        *_KIND.columns,
        Column("of all, in two phases", "two_phase_accuracy", "rate", TWO_PHASE),
        Column("abstained", "abstain_rate", "share"),
        Column("mean radius", "average_certified_radius", "plain"),
        Column("mean radius, at least", "average_certified_radius_at_least", "plain"),
        Column("out of time", "timeouts", "plain"),
        Column("seconds a sample", "mean_runtime", "plain"),
    ),
    meanings=MEANINGS,
)
