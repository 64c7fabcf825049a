"""Check a params.yaml against the registries: names of algorithms, visualisers, metrics and sanity checks."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.assessments.catalogue import entry_kind
from windtunnel.assessments.figures.registry import visualisers_of
from windtunnel.boundary.data.slices import slice_names
from windtunnel.boundary.params_file import read_params
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.evaluation.summary.headline import OF_CLASSES, OF_SLICES, SLICE_RATES
from windtunnel.params.load import budget_names, entries, validate_schema
from windtunnel.params.schema import Params
from windtunnel.records.gate import PAIRED_METRIC
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
        yield from record.unknown_words(f"{family}.{name}", entry)
        # Only here: what is resolved for a stage has the budget filled in.
        if not record.has_own_budget(entry) and (lack := entry.budget.lack(f"{family}.{name}", params.budget)):
            yield lack


def _unknown_checks(params: Params) -> Iterator[str]:
    if not params.sanity.thresholds:
        return  # the registry of checks is slow to import
    from windtunnel.evaluation.sanity.run import registry

    for name in params.sanity.thresholds:
        if name not in registry():
            yield unknown_word("sanity.thresholds", name, registry(), what="a sanity check")


def unknown_metrics(params: Params) -> Iterator[str]:
    """Yield a line for each metric of `gate` that a run of these params cannot have, with the nearest one."""
    every, paired = metric_names(params)
    for name, least in params.gate.minimum.items():
        if name in paired and not 0 <= least <= 1:
            yield f"gate.minimum: {name}: {least:g} is no share; it lies between 0 and 1, as 0.7 for 70 %"
        if name not in every:
            yield unknown_word(f"gate.minimum: {name}", name, every, what="a metric of this run")
    for name in params.gate.maximum_regression:
        if name in every and name not in paired:
            yield (
                f"gate.maximum_regression: {name}: is no mean over samples, so two models cannot be paired on it; "
                f"gate.minimum can bound it. Allowed: {', '.join(paired)}"
            )
        elif name not in paired:
            yield unknown_word(f"gate.maximum_regression: {name}", name, paired, what="a paired metric of this run")


def metric_names(params: Params) -> tuple[list[str], list[str]]:
    """Return (all metrics of metrics.json, metrics on which two models are paired), as `group/name`."""
    kinds = {name: entry_kind(family, name, entry) for family, name, entry in entries(params)}
    families = {name: family for family, name, _ in entries(params)}
    groups = ["clean"]
    groups += ["certified"] if AssessmentKind.FORMAL_VERIFICATION in kinds.values() else []
    groups += ["worst_case"] if set(kinds.values()) - {AssessmentKind.STATISTICAL_SAMPLING} else []
    paired = [f"{group}/accuracy" for group in groups]
    paired += ["certified/accuracy_all"] if "certified" in groups else []
    named = dict.fromkeys(budget_names(params).values())
    paired += [f"{group}/{name}/accuracy" for group in groups if group != "clean" for name in named]
    every = [f"{name}{end}" for name in paired for end in ("", "_ci_low", "_ci_high")]
    every += [f"{group}/n" for group in groups]
    every += [f"{group}/{name}/n" for group in groups if group != "clean" for name in named]
    every += [f"{group}/{metric}" for group in groups if group != "clean" for metric in OF_CLASSES]
    every += ["clean/nll", "clean/ece", "clean/adaptive_ece", "clean/brier", "hard_failures"]
    for column, value in slice_names(params.data.slices) if params.data.slices else ():
        rates = [rate for rate in SLICE_RATES if rate.removesuffix("_accuracy") in groups]
        paired += [f"slices/{column}/{value}/{rate}" for rate in rates]
        every += [f"slices/{column}/{value}/{rate}{end}" for rate in rates for end in ("", "_ci_low", "_ci_high")]
        every += [f"slices/{column}/{value}/n"]
    if params.data.slices:
        every += [f"{group}/{metric}" for group in groups if group != "clean" for metric in OF_SLICES]
    for name, kind in kinds.items():
        headline, metric = family_of(families[name]).headline, PAIRED_METRIC[kind]
        every += [f"{name}/{metric_name}" for metric_name in headline]
        paired += [f"{name}/{metric}"] if metric in headline else []
    return every, paired
