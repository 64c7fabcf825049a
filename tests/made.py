"""Metadata made for a test: everything a metadata.json must have, with what the test changes."""

from windtunnel.records.metadata import Metadata, parse_metadata

_CASE = {"statistical_sampling": "average_case"}


def metadata(kind: str = "empirical_attack", **changes: object) -> Metadata:
    """As a reader would see `content` of the same."""
    return parse_metadata(content(kind, **changes), "made")


def content(kind: str = "empirical_attack", **changes: object) -> dict[str, object]:
    """`changes` over the top-level keys; those of `semantics` are put over the ones it needs."""
    case = _CASE.get(kind, "worst_case")
    semantics = {
        "assessment_kind": kind,
        "case": case,
        "threat_model": "white_box",
        "objective": "untargeted",
        "perturbation": {},
        "families": [],
        "stochastic": False,
        **changes.pop("semantics", {}),
    }
    return {
        "name": "it",
        "assessment_kind": kind,
        "case": case,
        "algorithm": "PGD",
        "library": "torchattacks",
        "library_version": "1",
        "verdict_codes": {},
        "metrics": {},
        "kwargs": {},
        "call_kwargs": {},
        "provenance": {},
        "semantics": semantics,
        **changes,
    }
