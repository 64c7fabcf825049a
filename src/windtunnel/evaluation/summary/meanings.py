"""Explain the short names of the metrics in a line each, for all commands that list them; all. Quick to import."""

from collections.abc import Mapping

from windtunnel.assessments.reported import reported_of
from windtunnel.core.contracts import AssessmentKind
from windtunnel.registry.plugins import families

OF_THE_SUMMARY: Mapping[str, str] = {
    "worst_case_per_class": "share of each class's samples that no assessment broke, with its interval",
    "worst_case_weakest_class_accuracy": "the lowest of these shares",
    "worst_case_class_gap": "the highest of these shares minus the lowest; if its interval begins at 0, the gap may be chance",
    "certified_per_class": "share of each class's samples that are verified, with its interval",
    "certified_weakest_class_accuracy": "the lowest of these shares",
    "certified_class_gap": "the highest of these shares minus the lowest; if its interval begins at 0, the gap may be chance",
    "worst_case_weakest_slice_accuracy": "the lowest worst-case accuracy of a slice; its interval holds for all slices at once",
    "certified_weakest_slice_accuracy": "the lowest certified accuracy of a slice; its interval holds for all slices at once",
}


def meanings_of(family: str | None) -> Mapping[str, str]:
    """Return meanings by metric for `family`; all of them for the summary and for results of older versions."""
    return every_meaning() if family is None else reported_of(family, AssessmentKind.EMPIRICAL_ATTACK).meanings


def every_meaning() -> dict[str, str]:
    """By metric, of the summary and of every family, in their order."""
    return {**OF_THE_SUMMARY, **{key: meaning for name in families() for key, meaning in meanings_of(name).items()}}
