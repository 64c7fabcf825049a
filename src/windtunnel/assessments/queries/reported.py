"""Report section on query-counted attacks."""

from dataclasses import replace

from windtunnel.assessments.reported import OF_KIND
from windtunnel.core.contracts import AssessmentKind

MEANINGS = {"queries_succ_mean": "mean number of queries of a success"}
REPORTED = replace(OF_KIND[AssessmentKind.EMPIRICAL_ATTACK], meanings=MEANINGS)
