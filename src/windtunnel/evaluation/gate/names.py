"""Which metrics `gate` can name, known from params.yaml alone: a slip is answered before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windtunnel.assessments.catalogue import entry_kind
from windtunnel.core.contracts import AssessmentKind
from windtunnel.core.errors import unknown_word
from windtunnel.evaluation.summary.headline import OF_CLASSES
from windtunnel.params.load import entries
from windtunnel.records.outcomes import PAIRED_METRIC
from windtunnel.registry.plugins import family_of

if TYPE_CHECKING:
    from windtunnel.params.schema import Params


def unknown_metrics(params: Params) -> Iterator[str]:
    """A line for each metric of `gate` that a run of these params cannot have, with the nearest one."""
    every, paired = metric_names(params)
    for name in params.gate.minimum:
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
    """(every metric that metrics.json may hold, those on which two models are paired), as `group/name`."""
    kinds = {name: entry_kind(family, name, entry) for family, name, entry in entries(params)}
    families = {name: family for family, name, _ in entries(params)}
    groups = ["clean"]
    groups += ["certified"] if AssessmentKind.FORMAL_VERIFICATION in kinds.values() else []
    groups += ["worst_case"] if set(kinds.values()) - {AssessmentKind.STATISTICAL_SAMPLING} else []
    paired = [f"{group}/accuracy" for group in groups]
    paired += ["certified/accuracy_all"] if "certified" in groups else []
    every = [f"{name}{end}" for name in paired for end in ("", "_ci_low", "_ci_high")]
    every += [f"{group}/n" for group in groups]
    every += [f"{group}/{metric}" for group in groups if group != "clean" for metric in OF_CLASSES]
    every += ["clean/nll", "clean/ece", "clean/adaptive_ece", "clean/brier", "hard_failures"]
    for name, kind in kinds.items():
        headline, metric = family_of(families[name]).headline, PAIRED_METRIC[kind]
        every += [f"{name}/{found}" for found in headline]
        paired += [f"{name}/{metric}"] if metric in headline else []
    return every, paired
