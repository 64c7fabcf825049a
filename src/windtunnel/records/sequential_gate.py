"""Record of a sequential gate: its decision, and the confidence sequence of each condition after each batch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from windtunnel.records.gate import Decision


class SequentialStep(BaseModel):
    """One condition after one batch of `windtunnel gate --sequential`."""

    name: str = Field(description="metric, followed by `vs champion` for a difference to the champion")
    n: int = Field(description="samples so far")
    value: float = Field(description="their mean")
    threshold: float
    interval: tuple[float, float] = Field(description="95 % confidence sequence")
    holds: bool | None = Field(description="null while undecided")


class SequentialDecision(BaseModel):
    """Decision of `windtunnel gate --sequential`: reports/gate_sequential.json, and the answer of --json."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["windtunnel.gate_sequential/1"] = "windtunnel.gate_sequential/1"
    decision: Decision
    exit_code: int
    n: int = Field(description="samples that were assessed")
    is_early: bool = Field(description="false where the rule for all samples decided, at the largest n")
    run: dict[str, str] = Field(default_factory=dict, description="by stage, the digest of what decides its result")
    steps: list[list[SequentialStep]] = Field(description="the conditions after each batch")

    @property
    def sentence(self) -> str:
        """The decision in words."""
        prefix, rule = ("", "") if self.is_early else ("un", "; by the rule for all samples")
        return f"gate: {prefix}decided after {self.n} samples{rule}: {self.decision.value}. No sanity check was run."
