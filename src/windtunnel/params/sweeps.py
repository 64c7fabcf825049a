"""Schema of an entry of `sweeps`."""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator

from windtunnel.params.entry import Block, Entry, NonNegative, Number, key

MOST_EPSILONS = 10_000  # of a grid


class EpsilonRange(Block):
    """A epsilon grid by its ends: `steps` values from `start` to `stop`, both included."""

    start: Number = Field(ge=0)
    stop: Number = Field(gt=0)
    steps: PositiveInt = Field(le=MOST_EPSILONS)
    spacing: str = key("linear", "linear, or geometric (start above 0)", pattern="^(linear|geometric)$")

    @model_validator(mode="after")
    def _ends(self) -> EpsilonRange:
        if self.stop <= self.start and self.steps > 1:
            raise ValueError(f"stop ({self.stop:g}) must be larger than start ({self.start:g})")
        if self.spacing == "geometric" and self.start == 0:
            raise ValueError("a geometric range cannot start at 0; zero is added to every grid anyway")
        return self


class RatingThresholds(Block):
    """Accuracy drops at the median epsilon below which a model is called robust, or moderately fragile."""

    robust: Number = Field(0.10, gt=0, le=1)
    moderately_fragile: Number = Field(0.40, gt=0, le=1)

    @model_validator(mode="after")
    def _order(self) -> RatingThresholds:
        if self.moderately_fragile <= self.robust:
            raise ValueError(
                f"moderately_fragile ({self.moderately_fragile:g}) must be larger than robust ({self.robust:g})"
            )
        return self


class SweepEntry(Entry):
    """An attack over an epsilon grid."""

    draws_by_batch = True

    library: str = "windtunnel"
    algorithm: str = "FGSM"
    epsilons: list[NonNegative] | EpsilonRange = Field(
        default_factory=lambda: [0.0, 0.01, 0.02, 0.05, 0.1, 0.2],
        description="a list, or {start, stop, steps, spacing}",
    )
    refine: PositiveInt | None = key(None, "bisection steps between the grid points around a flip", le=60)
    clip: bool = key(True, "keep perturbed inputs in the data's value range")
    thresholds: RatingThresholds = RatingThresholds()
