"""Schemas of the blocks after the assessments: `clean`, `sanity`, `report`, `tracking`, `gate`."""

from typing import Literal

from pydantic import Field, PositiveInt

from windtunnel.params.entry import Block, Number, PartialShare, Share, Value, key
from windtunnel.params.model import OtherModel

MAX_TITLE = 200  # characters


class Clean(Block):
    """The clean evaluation."""

    ci_method: Literal["wilson", "clopper_pearson", "jeffreys", "agresti_coull"] = "wilson"
    ci_level: Number = Field(0.95, gt=0, lt=1)
    calibration_bins: PositiveInt = 10


class Sanity(Block):
    """Checks of the evaluation itself; `windtunnel sanity --explain C3` explains one of them."""

    profile: Literal["stored", "standard", "full"] = key(
        "standard", "stored: tensors on disk; standard: a few passes too; full: attacks rerun too"
    )
    before_promotion: Literal["standard", "full"] = key(
        "full", "full: a promotion waits for the checks that rerun attacks, whatever the profile"
    )
    thresholds: dict[str, Number] = key(dict, "check id: threshold instead of the documented one, e.g. C3: 0.01")
    samples: PositiveInt = key(100, "on how many samples attacks are rerun at most")
    queries: PositiveInt = key(
        1000, "queries that a model.source: function may get from the checks, half of them from the witness (D15)"
    )
    expected_clean_accuracy: Share | None = key(None, "what the model is known to reach on this data (A8)")
    surrogate: str | OtherModel | None = key(
        None, "a second model for transfer (D15): an earlier reports/model, or {model, factory, ...}"
    )
    benchmark: Literal["cifar10", "cifar100", "imagenet"] | None = key(
        None, "whose best known robust accuracy is the ceiling (C21)"
    )
    adaptive: bool = key(False, "the attacks go through the model's defence (D12)")


class Report(Block):
    """The PDF and the HTML report."""

    title: str = Field("Robustness assessment", max_length=MAX_TITLE)
    layout: Literal["compact", "full"] = key(
        "compact", "compact: the PDF answers in few pages, the HTML folds the details; full: everything, on paper too"
    )
    show_sample_names: bool = key(True, "the report names the samples; else it numbers them")
    pictures: Literal["shown", "blurred", "none"] = key(
        "shown",
        "pictures of samples in report, figures, MLflow, view and comparisons: blurred leaves 4x4 fields at most",
    )
    paper: Literal["A4", "Letter"] = "A4"
    figure_scope: Literal["per_sample", "per_assessor"] = key(
        "per_sample", "pictures of attacks: sample by sample under every attack, or attack by attack"
    )


class ReportEntry(Block):
    """Parameters of the stage `report`: its block, and the names of the assessments in the order of params.yaml."""

    report: Report
    assessments: tuple[str, ...]


class Tracking(Block):
    """MLflow."""

    experiment: str = "windtunnel"
    uri: str | None = key(None, "tracking server; MLFLOW_TRACKING_URI wins; local SQLite where absent")
    log_tensors: bool = key(False, "upload robustness_data.pt too, not only its path and digest")
    registered_model: str = key("windtunnel", "name in the model registry: promote, rollback, retrain")
    strict: bool = key(False, "an unreachable server fails the stage instead of filling the outbox")
    tags: dict[str, Value] = Field(default_factory=dict)


class NonInferiority(Block):
    """Test that a challenger is not worse than the champion by more than a margin, on the same samples."""

    method: Literal["tango", "newcombe"] = key(
        "tango", "interval of the difference of paired rates; means over images have one of their own"
    )
    alpha: Number = key(0.05, "one-sided level: risk of promoting a model worse by the margin", gt=0, lt=0.5)


class Gate(Block):
    """Conditions a model must meet; see `windtunnel gate`."""

    minimum: dict[str, Number] = key(
        dict, "metric of the summary: smallest value allowed, e.g. worst_case/accuracy: 0.3"
    )
    maximum_regression: dict[str, PartialShare] = key(
        dict, "metric that is a mean over samples: largest loss allowed against the champion, e.g. clean/accuracy: 0.02"
    )
    non_inferiority: NonInferiority = NonInferiority()
    minimum_samples: PositiveInt = key(1, "smallest number of samples that the metrics named here may be of")
    no_hard_failures: bool = True

    @property
    def is_set(self) -> bool:
        """Return True if the gate has a condition beyond a sound run."""
        return bool(self.minimum or self.maximum_regression or self.minimum_samples > 1)
