"""Report section on corruptions."""

from windtunnel.assessments.reported import OF_KIND, Column, Reported
from windtunnel.core.contracts import AssessmentKind

_KIND = OF_KIND[AssessmentKind.STATISTICAL_SAMPLING]
MEANINGS = {
    "mce": "mean corruption error (mCE): errors relative to those of a reference model; 1 means as many",
    "relative_mce": "as mCE, of the errors beyond those without corruption",
}
_MCE = "mCE, mean corruption error: errors relative to those of a reference model; 100 % means as many errors as the reference"
_RELATIVE_MCE = "relative mCE: the same of the errors beyond those without corruption"
REPORTED = Reported(
    _KIND.question,
    (
        *_KIND.columns,
        Column("mCE", "mce", "rate", _MCE),
        Column("relative mCE", "relative_mce", "rate", _RELATIVE_MCE),
        Column("worst corruption", "worst_corruption", "plain"),
        Column("its mean accuracy", "worst_corruption_accuracy", "rate"),
        Column("never broken", "never_broken", "share", "never broken: right under every corruption that ran"),
    ),
    meanings=MEANINGS,
)
