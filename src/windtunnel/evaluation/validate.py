"""Check a params.yaml against the registries: names of algorithms, visualisers, metrics and sanity checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.assessments.figures.registry import visualisers_of
from windtunnel.boundary.params_file import read_params
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.evaluation.gate.names import unknown_metrics
from windtunnel.params.load import entries, validate_schema
from windtunnel.params.schema import Params
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.registry.plugins import family_of


def validated_params(path: Path = PARAMS_FILE) -> Params:
    """params.yaml, validated whole: the schema and every name. Raises UserError with a line per mistake."""
    return validate(read_params(path), str(path))


def validate(raw: Mapping[str, object], where: str = "params") -> Params:
    """Validate the content of a params.yaml (see `validated_params`)."""
    params = validate_schema(raw, where)
    mistakes = [*_unknown_words(params), *_unknown_checks(params)] or [*unknown_metrics(params)]
    if mistakes:
        raise UserError("\n".join(f"{where}: {line}" for line in mistakes))
    return params


def _unknown_words(params: Params) -> Iterator[str]:
    for family, name, entry in entries(params):
        try:
            visualisers_of(family, name, entry)
        except UserError as error:
            yield str(error)
        record = family_of(family)
        if record.unknown_words:
            yield from record.unknown_words()(f"{family}.{name}", entry)
        depends = record.depends
        has_own_budget = depends is not None and depends().own_budget(entry)
        # Only here: what is resolved for a stage has the budget filled in.
        if not has_own_budget and (lack := entry.budget.lack(f"{family}.{name}", params.budget)):
            yield lack


def _unknown_checks(params: Params) -> Iterator[str]:
    if not params.sanity.thresholds:
        return  # the registry of checks is slow to import
    from windtunnel.evaluation.sanity.run import registry

    for name in params.sanity.thresholds:
        if name not in registry():
            yield unknown_word("sanity.thresholds", name, registry(), what="a sanity check")
