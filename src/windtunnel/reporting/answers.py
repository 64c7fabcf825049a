"""What commands say with --json: one type per command, whose fields docs/json.md lists. Fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.core.files import METADATA_FILE, plain_json, read_json
from windtunnel.core.layout import GATE, ROBUSTNESS, SANITY, SUMMARY
from windtunnel.evaluation.sanity.findings import counts, overall, read_sanity, rows_in, with_caveats
from windtunnel.reporting.compare.comparison import Comparison


class Answer(BaseModel):
    """What every answer has: `format`, its type and version."""

    model_config = ConfigDict(extra="forbid")

    def text(self) -> str:
        """As JSON, a line per value."""
        return self.model_dump_json(indent=2)


class Checks(BaseModel):
    """The sanity checks of a run: `status` fail, warn or pass; `counts` by outcome."""

    status: str
    counts: dict[str, int]


class Assessment(BaseModel):
    """One assessment: what it ran, its metrics as in metadata.json, and what limits them."""

    library: str
    algorithm: str
    assessment_kind: str
    metrics: dict[str, object]
    caveats: list[dict[str, object]]


class ShowAnswer(Answer):
    """`windtunnel show --json`."""

    format: Literal["windtunnel.show/1"] = "windtunnel.show/1"
    hard_failures: list[str] = Field(description="reasons why the numbers must not be believed; empty for a sound run")
    sandwich: list[dict[str, object]] = Field(
        description="a row per budget: norm, epsilon, n, accuracies with intervals"
    )
    assessments: dict[str, Assessment] = Field(description="by name, `clean` first")
    sanity: Checks | None = Field(description="null where the stage never ran")
    gate: str | None = Field(description="passed, failed or unsound; null where the stage never ran")


class Condition(BaseModel):
    """One condition of the gate, as in gate.json."""

    name: str
    value: float | None
    threshold: float
    interval: tuple[float, float] | None
    holds: bool
    bound: str
    reason: str


class GateAnswer(Answer):
    """`windtunnel gate --json`; the exit code is the same as without."""

    format: Literal["windtunnel.gate/1"] = "windtunnel.gate/1"
    decision: Literal["passed", "failed", "unsound"]
    exit_code: int
    conditions: list[Condition]
    hard_failures: list[str]
    champion: dict[str, object] | None = Field(description="the champion it was compared with; null for none")


class SanityAnswer(Answer):
    """`windtunnel sanity --json`."""

    format: Literal["windtunnel.sanity/1"] = "windtunnel.sanity/1"
    status: str
    counts: dict[str, int]
    checks: list[dict[str, object]] = Field(description="a row per check, as in reports/sanity/metadata.json")
    asked_now: list[dict[str, object]] = Field(description="checks about this moment (MLflow, git), not in the counts")


class CheckAnswer(Answer):
    """`windtunnel check --json`; exit code 2 where not ok."""

    format: Literal["windtunnel.check/1"] = "windtunnel.check/1"
    ok: bool
    assessments: int = Field(description="how many entries params.yaml has; 0 where it could not be read")
    mistakes: list[str] = Field(description="a line per mistake")


class PairAnswer(BaseModel):
    """One outcome of the same samples in two runs: counts, rates, interval of the difference, McNemar's p, Holm's."""

    name: str
    n: int
    both: int
    gained: int
    lost: int
    neither: int
    rates: tuple[float, float]
    interval: tuple[float, float]
    p_value: float
    adjusted_p_value: float


class AgainstAnswer(BaseModel):
    """A run against the first: what could be paired, and a line for what could not."""

    run: str
    pairs: list[PairAnswer]
    refused: list[str]


class CompareAnswer(Answer):
    """`windtunnel compare --json`."""

    format: Literal["windtunnel.compare/1"] = "windtunnel.compare/1"
    runs: list[dict[str, object]] = Field(description="label, origin and notes of each run, the first the reference")
    params: dict[str, list[str | None]] = Field(description="what differs, a value per run")
    metrics: dict[str, list[float | None]] = Field(description="what differs, a value per run")
    equal_metrics: int
    against: list[AgainstAnswer]


ANSWERS: tuple[type[Answer], ...] = (ShowAnswer, GateAnswer, SanityAnswer, CheckAnswer, CompareAnswer)


def show_answer() -> ShowAnswer:
    """The last run. Raises UserError where there is none."""
    summary = _metadata(SUMMARY / METADATA_FILE)
    kwargs, checks = cast(dict[str, list[str]], summary["kwargs"]), rows_in(read_sanity(SANITY))
    names = ["clean", *(name for name in kwargs["assessments"] if name != "clean")]
    paths = {name: ROBUSTNESS / name / METADATA_FILE for name in names}
    blocks = {name: with_caveats(_metadata(path), checks) for name, path in paths.items() if path.is_file()}
    number = counts(checks)
    return ShowAnswer(
        hard_failures=kwargs["hard_failures"],
        sandwich=cast(list[dict[str, object]], cast(dict[str, Json], summary["metrics"]).get("sandwich", [])),
        assessments={name: _assessment(block) for name, block in blocks.items()},
        sanity=Checks(status=overall(number), counts=number) if checks else None,
        gate=str(_metadata(GATE)["decision"]) if GATE.is_file() else None,
    )


def gate_answer(verdict: Mapping[str, Json]) -> GateAnswer:
    """gate.json. Raises ValueError where it is damaged."""
    return GateAnswer.model_validate(dict(verdict))


def sanity_answer(recorded: Iterable[Mapping[str, Json]], asked_now: Iterable[Mapping[str, Json]]) -> SanityAnswer:
    """The record of the stage, and what was asked at the moment."""
    rows = [dict(row) for row in recorded]
    number = counts(rows)
    now = [dict(row) for row in asked_now]
    return SanityAnswer(
        status=overall(number),
        counts=number,
        checks=cast(list[dict[str, object]], rows),
        asked_now=cast(list[dict[str, object]], now),
    )


def compare_answer(comparison: Comparison) -> CompareAnswer:
    """A comparison, without its tensors."""
    return CompareAnswer(
        runs=[{"label": r.label, "origin": r.origin, "notes": list(r.notes)} for r in comparison.runs],
        params={name: list(values) for name, values in comparison.params},
        metrics={name: list(values) for name, values in comparison.metrics},
        equal_metrics=comparison.equal_metrics,
        against=[
            AgainstAnswer(
                run=other.run.label,
                refused=list(other.refused),
                pairs=[
                    PairAnswer(
                        name=pair.name, n=pair.table.n, both=pair.table.both, gained=pair.table.gained,
                        lost=pair.table.lost, neither=pair.table.neither, rates=pair.rates, interval=pair.interval,
                        p_value=pair.p_value, adjusted_p_value=adjusted,
                    )
                    for pair, adjusted in zip(other.pairs, other.adjusted, strict=True)
                ],
            )
            for other in comparison.against
        ],
    )  # fmt: skip


def _assessment(metadata: Mapping[str, Json]) -> Assessment:
    return Assessment(
        library=str(metadata["library"]),
        algorithm=str(metadata["algorithm"]),
        assessment_kind=str(metadata["assessment_kind"]),
        metrics=cast(dict[str, object], plain_json(metadata["metrics"])),
        caveats=cast(list[dict[str, object]], metadata.get("caveats", [])),
    )


def _metadata(path: Path) -> dict[str, Json]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not an object. Run dvc repro")
    return content
