"""The headline metric of an assessment, for places that show one number: a bar of a chart, a line of a table, a stage's log."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError
from windtunnel.records.metadata import Metadata
from windtunnel.registry.plugins import families, family_of

# What an assessment of a kind leads with, in words; a family whose record says otherwise leads with that.
OF_KIND: Mapping[AssessmentKind, Mapping[str, str]] = {
    AssessmentKind.EMPIRICAL_ATTACK: {"adversarial_accuracy": "robust accuracy"},
    AssessmentKind.FORMAL_VERIFICATION: {"certified_accuracy": "certified"},
    AssessmentKind.STATISTICAL_SAMPLING: {"corrupted_accuracy": "corrupted accuracy"},
}
_CLEAN = {"clean_accuracy": "correct on clean inputs"}  # the clean evaluation is also the corruption "none"
_NO_ENTRY = {key: phrase for of_kind in OF_KIND.values() for key, phrase in of_kind.items()} | _CLEAN


def leading_metric(metadata: Metadata) -> str | None:
    """Return the headline metric of an assessment; None if it has none."""
    return next((key for key in _candidates(metadata) if key in metadata.metrics), None)


def leading_words(metadata: Metadata) -> str:
    """Return the meaning of that metric in words; empty where there is none."""
    return _candidates(metadata).get(leading_metric(metadata) or "", "")


def leading_metrics() -> frozenset[str]:
    """Return every metric that may be a headline."""
    return frozenset(_NO_ENTRY).union(*(family.accuracy for family in families().values()))


def _candidates(metadata: Metadata) -> Mapping[str, str]:
    if metadata.name == "clean":
        return _CLEAN
    if metadata.family is None:  # the summary, or of an older version
        return _NO_ENTRY
    try:
        return {**family_of(metadata.family).accuracy, **OF_KIND[metadata.assessment_kind]}
    except UserError:  # of a plug-in that is not installed any more
        return OF_KIND[metadata.assessment_kind]
