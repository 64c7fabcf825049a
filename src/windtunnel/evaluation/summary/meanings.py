"""Explain the short names of the metrics in a line each, for all commands that list them; all. Quick to import."""

from collections.abc import Mapping

from windtunnel.core.contracts import AssessmentKind
from windtunnel.registry.plugins import families
from windtunnel.registry.reported import OF_KIND, Reported

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


def reported_of(family: str | None, kind: AssessmentKind) -> Reported:
    """Return the report section of a family's assessments; of the clean evaluation and of an unknown family, that of the kind."""
    record = families().get(family or "")
    return record.report_section(kind) if record else OF_KIND[kind]


def meanings_of(family: str | None) -> Mapping[str, str]:
    """Return meanings by metric for `family`; all of them for the summary and for results of older versions."""
    return every_meaning() if family is None else reported_of(family, AssessmentKind.EMPIRICAL_ATTACK).meanings


def every_meaning() -> dict[str, str]:
    """By metric, of the summary and of every family, in their order."""
    return {**OF_THE_SUMMARY, **{key: meaning for name in families() for key, meaning in meanings_of(name).items()}}
