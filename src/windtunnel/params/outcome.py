"""Schemas of what is made of the assessments: `clean`, `sanity`, `report`, `tracking`, `gate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from windtunnel.params.entry import Block, Value
from windtunnel.params.numbers import Number


class Clean(Block):
    """The clean evaluation."""

    ci_method: Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"] = "wilson"
    ci_level: Number = Field(0.95, gt=0, lt=1)
    calibration_bins: PositiveInt = 10


class Sanity(Block):
    """Checks of the evaluation itself; no option yet, since none of them runs yet."""


class Report(Block):
    """The PDF and the HTML report."""

    title: str = "Robustness assessment"
    layout: Literal["compact", "full"] = Field(
        "compact", description="compact: no clean image, perturbation map or metric twice; full: everything"
    )
    figure_scope: Literal["per_sample", "per_assessor"] = Field(
        "per_sample", description="pictures of attacks: sample by sample under every attack, or attack by attack"
    )


class Tracking(Block):
    """MLflow."""

    experiment: str = "windtunnel"
    uri: str | None = Field(None, description="tracking server; MLFLOW_TRACKING_URI wins; local SQLite where absent")
    log_tensors: bool = Field(False, description="upload robustness_data.pt too, not only its path and digest")
    strict: bool = Field(False, description="an unreachable server fails the stage instead of filling the outbox")
    tags: dict[str, Value] = Field(default_factory=dict)


class Gate(Block):
    """Conditions a model must meet; see `windtunnel gate`."""

    minimum: dict[str, Number] = Field(
        default_factory=dict, description="metric of the summary: smallest value allowed, e.g. worst_case/accuracy: 0.3"
    )
    minimum_samples: PositiveInt = 1
    no_hard_failures: bool = True
