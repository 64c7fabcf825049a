"""Report section on sweeps."""

from dataclasses import replace

from windtunnel.assessments.reported import OF_KIND
from windtunnel.core.contracts import AssessmentKind

MEANINGS = {
    "median_critical_epsilon": "half of the samples are broken at a smaller epsilon of the sweep",
    "area_under_curve": "mean accuracy over the sweep's epsilons, by the trapezoid rule",
}
REPORTED = replace(OF_KIND[AssessmentKind.EMPIRICAL_ATTACK], meanings=MEANINGS)
