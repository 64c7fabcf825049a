"""Define the JSON of commands with --json: one type per command, whose fields docs/json.md lists. Fields are added, never renamed."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from windtunnel.evaluation.gate.sequential import SequentialGate
from windtunnel.evaluation.input_conventions.look import SeenSample
from windtunnel.records.basis import Basis
from windtunnel.records.findings import FindingRecord, counts, overall
from windtunnel.records.gate import Condition, Decision, GateResult, Origin, gate_json
from windtunnel.records.metadata import Metadata, Rate
from windtunnel.records.sequential_gate import SequentialDecision, SequentialStep
from windtunnel.reporting.compare.comparison import Comparison, Pair


class Answer(BaseModel):
    """Common field of all JSON answers: `format`, its type and version."""

    model_config = ConfigDict(extra="forbid")

    def text(self) -> str:
        """Return the JSON text, a line per value."""
        return self.model_dump_json(indent=2)


class ShowAnswer(Answer):
    """`windtunnel show --json`: each metadata.json with the caveats of the sanity checks."""

    format: Literal["windtunnel.show/1"] = "windtunnel.show/1"
    summary: Metadata
    assessments: dict[str, Metadata] = Field(description="by name, the clean evaluation first")
    checks: list[FindingRecord] = Field(description="a row per sanity check, as in reports/sanity/metadata.json")
    gate: dict[str, object] | None = Field(description="gate.json; null where the gate has not run")


class GateAnswer(Answer):
    """`windtunnel gate --json`; the exit code is the same as without."""

    format: Literal["windtunnel.gate/1"] = "windtunnel.gate/1"
    decision: Decision
    exit_code: int
    conditions: list[Condition]
    hard_failures: list[str]
    champion: Origin | None = Field(description="the champion it was compared with; null for none")


class SanityAnswer(Answer):
    """`windtunnel sanity --json`."""

    format: Literal["windtunnel.sanity/1"] = "windtunnel.sanity/1"
    status: str
    counts: dict[str, int]
    checks: list[FindingRecord] = Field(description="a row per check, as in reports/sanity/metadata.json")
    asked_now: list[FindingRecord] = Field(description="checks about this moment (MLflow, git), not in the counts")


class SeenAnswer(BaseModel):
    """Predictions on a few prepared samples, and what it seems to be given wrongly."""

    samples: list[SeenSample]
    picture: str | None = Field(description="the samples as a picture; null for what is no image")
    clean_accuracy: float | None = Field(description="null without labels, and for a model that is not trained")
    measured_on: int = Field(description="so many samples")
    input_range: tuple[float, float]
    suspicions: list[str] = Field(
        description="a sentence each: normalisations, channels, scale, size, order of the classes"
    )
    proposal: list[str] = Field(
        default_factory=list, description="lines of params.yaml that cure the first suspicion; empty where none do"
    )


class EstimateAnswer(BaseModel):
    """One entry of params.yaml, from one batch of it."""

    name: str
    samples: int
    batch: int = Field(description="samples that were tried; 0 where none were")
    seconds: float = Field(description="for all samples, over the workers there are")
    memory_bytes: int = Field(description="the most of one process, beside mapped files")
    disk_bytes: int
    skipped: str = Field(description="why nothing was measured; empty if it was measured")
    advice: str = Field("", description="the line for a batch size that does not fit, or is slow; empty where it suits")


class PlanAnswer(BaseModel):
    """Samples that `--minutes` and `--width` propose for one entry."""

    name: str
    samples: int
    width: float = Field(description="of the 95 % Wilson interval of a rate of one half, the widest there is")
    seconds: float = Field(description="for these samples, over the workers there are")


class QueriesAnswer(BaseModel):
    """Queries of one stage or entry to a Python predict."""

    name: str
    samples: int
    most: int | None = Field(description="upper bound; null where none is set")


class RoomAnswer(BaseModel):
    """Resources that the run needs on this machine."""

    disk_bytes: int = Field(description="of all results, without DVC's cache")
    memory_bytes: int = Field(description="about what the process of a stage takes at its peak, beside mapped files")
    workers: int
    seconds: float | None = Field(description="of all entries one after the other; null without --estimate")
    entries: list[EstimateAnswer] = Field(description="empty without --estimate")
    plan: list[PlanAnswer] = Field([], description="empty without --minutes and --width")
    queries: list[QueriesAnswer] = Field([], description="empty unless model.source is function")


class CheckAnswer(Answer):
    """`windtunnel check --json`; exit code 2 where not ok."""

    format: Literal["windtunnel.check/1"] = "windtunnel.check/1"
    ok: bool
    assessments: int = Field(description="how many entries params.yaml has; 0 where it could not be read")
    mistakes: list[str] = Field(description="a line per mistake")
    seen: SeenAnswer | None = Field(None, description="null if the model was not evaluated")
    needs: RoomAnswer | None = Field(None, description="null where the data or the model could not be loaded")


class PairAnswer(BaseModel):
    """One outcome of the same samples in two runs: counts, rates, interval of the difference, McNemar's p, Holm's."""

    name: str
    norms: tuple[str | None, str | None] = Field(description="of each run; null for no ball")
    epsilons: tuple[float | None, float | None] = Field(description="of each run; null for none, or without bound")
    n: int
    both: int
    gained: int
    lost: int
    neither: int
    rates: tuple[float, float]
    rate_intervals: tuple[tuple[float, float], tuple[float, float]] = Field(description="95 %, of each rate")
    interval: tuple[float, float] = Field(description="95 %, of the difference")
    p_value: float
    adjusted_p_value: float


class AgainstAnswer(BaseModel):
    """A run against the first: what could be paired, and a line for what could not."""

    run: str
    pairs: list[PairAnswer]
    refused: list[str]


class RunAnswer(BaseModel):
    """A run: where it came from, and what there is to say of it."""

    label: str
    origin: str
    notes: list[str]


class MeasureAnswer(BaseModel):
    """A metric of one run, and what it is of."""

    value: float
    interval: tuple[float, float] | None = Field(description="95 %; null where it has none")
    norm: str | None = Field(description="null for no ball")
    epsilon: float | None = Field(description="null for none, or without bound")
    n: int | None = Field(description="samples; null where not known")


class CompareAnswer(Answer):
    """`windtunnel compare --json`."""

    format: Literal["windtunnel.compare/1"] = "windtunnel.compare/1"
    runs: list[RunAnswer] = Field(description="the first is the reference")
    params: dict[str, list[str | None]] = Field(description="what differs, a value per run")
    metrics: dict[str, list[float | None]] = Field(description="what differs, a value per run")
    measured: dict[str, list[MeasureAnswer | None]] = Field(description="the same metrics with what each is of")
    equal_metrics: int
    against: list[AgainstAnswer]


ANSWERS: tuple[type[BaseModel], ...] = (
    ShowAnswer,
    GateAnswer,
    SequentialDecision,
    SanityAnswer,
    CheckAnswer,
    CompareAnswer,
)


def gate_answer(result: GateResult) -> GateAnswer:
    """Return the decision of the gate."""
    return GateAnswer.model_validate(gate_json(result))


def sequential_step(gate: SequentialGate) -> list[SequentialStep]:
    """Return the conditions of a sequential gate as they are now."""
    return [
        SequentialStep(
            name=c.title, n=c.passing.n, value=c.value, threshold=c.threshold, interval=c.interval, holds=c.holds
        )
        for c in gate.conditions
    ]


def sanity_answer(recorded: Iterable[FindingRecord], asked_now: Iterable[FindingRecord]) -> SanityAnswer:
    """Return the record of the stage, and what was asked at the moment."""
    rows = [*recorded]
    number = counts(rows)
    return SanityAnswer(status=overall(number), counts=number, checks=rows, asked_now=[*asked_now])


def compare_answer(comparison: Comparison) -> CompareAnswer:
    """Return a comparison, without its tensors."""
    return CompareAnswer(
        runs=[RunAnswer(label=run.label, origin=run.origin, notes=[*run.notes]) for run in comparison.runs],
        params={name: [*values] for name, values in comparison.params},
        metrics={name: [*values] for name, values in comparison.metrics},
        measured={
            name: [_measure(rate, basis) for rate, basis in zip(rates, comparison.bases[name], strict=True)]
            for name, rates in comparison.rates.items()
        },
        equal_metrics=comparison.equal_metrics,
        against=[
            AgainstAnswer(
                run=other.run.label,
                refused=[*other.refused],
                pairs=[_pair(pair, adjusted) for pair, adjusted in zip(other.pairs, other.adjusted, strict=True)],
            )
            for other in comparison.against
        ],
    )


def _measure(rate: Rate | None, basis: Basis) -> MeasureAnswer | None:
    if rate is None:
        return None
    return MeasureAnswer(value=rate.value, interval=rate.limits, norm=basis.norm, epsilon=basis.epsilon, n=basis.n)


def _pair(pair: Pair, adjusted: float) -> PairAnswer:
    first, second = pair.bases
    return PairAnswer(
        name=pair.name,
        norms=(first.norm, second.norm),
        epsilons=(first.epsilon, second.epsilon),
        n=pair.table.n,
        **asdict(pair.table),
        rates=pair.rates,
        rate_intervals=pair.limits,
        interval=pair.interval,
        p_value=pair.p_value,
        adjusted_p_value=adjusted,
    )
