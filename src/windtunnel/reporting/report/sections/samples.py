"""The per-sample appendix: each sample's tightest status, who decided it, and what every assessment found of it."""

import math

from torch import Tensor

from windtunnel.core.contracts import Verdict
from windtunnel.core.sample_states import SampleState, states_of
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.metadata import names_in
from windtunnel.records.sandwich import options_of_summary
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import SampleAppendix, SampleResult, SampleRow
from windtunnel.reporting.report.phrases import class_name, region_words
from windtunnel.reporting.report.pictures import thumbnails_note
from windtunnel.reporting.report.sections.statement import layers

_VERDICT = {int(v): v.label.replace("_", " ") for v in Verdict}


def samples_appendix(inputs: ReportInputs) -> SampleAppendix | None:
    """Every sample of the run; None where nothing says which samples there were."""
    base = inputs.base
    if base is None:
        return None
    classes, results = base.class_names, [_results(a, base.class_names) for a in inputs.assessments]
    targets, clean = (base.tensor(key).tolist() for key in ("targets", "clean_predictions"))
    if inputs.summary:
        statuses = _statuses(inputs.summary)
    else:
        right, wrong = ("", "", ""), (SampleState.MISCLASSIFIED.words, "clean", "")
        statuses = [right if target == answer else wrong for target, answer in zip(targets, clean, strict=True)]
    rows = tuple(
        SampleRow(
            name, class_name(classes, target), class_name(classes, answer), *status, tuple(r.get(name) for r in results)
        )
        for name, target, answer, status in zip(base.sample_names, targets, clean, statuses, strict=True)
    )
    sprites = tuple(inputs.pictures.sprites) if inputs.pictures else ()
    return SampleAppendix(
        _note(inputs, len(rows)), rows, tuple((a.name, region_words(a)) for a in inputs.assessments), sprites
    )


def _note(inputs: ReportInputs, total: int) -> str:
    where = f" The status is that at {layers(inputs.summary)[0].budget}." if inputs.summary else ""
    text = f"{total} samples.{where} {'; '.join(state.meaning for state in SampleState)}."
    return f"{text} {thumbnails_note(inputs.pictures, total)}".strip()


def _statuses(summary: Artifacts) -> list[tuple[str, str, str]]:
    """Return (state, who decided, distance) of each sample."""
    names = options_of_summary(summary.metadata).assessments
    states = states_of(summary.data, summary.tensor("clean_predictions"), summary.tensor("targets")).tolist()
    worst_by, certified_by, distances = (
        summary.tensor(key).tolist() for key in ("worst_by", "certified_by", "perturbation_distance")
    )

    def who(index: int) -> str:
        return names[index] if 0 <= index < len(names) else ""

    rows = []
    for code, worst, certified, distance in zip(states, worst_by, certified_by, distances, strict=True):
        state = list(SampleState)[code]
        by = {SampleState.MISCLASSIFIED: "clean", SampleState.CERTIFIED: who(certified)}.get(state, who(worst))
        if state is SampleState.BROKEN and who(certified):
            by += f", although certified by {who(certified)}"
        rows.append((state.words, by, f"{distance:.4g}" if state is SampleState.BROKEN else ""))
    return rows


def _results(artifacts: Artifacts, classes: list[str]) -> dict[str, SampleResult]:
    """Return the results of one assessment by sample name."""
    n = len(artifacts.sample_names)
    verdicts = artifacts.tensor("verdicts").tolist()
    after = _column(artifacts, "perturbed_predictions", n, -1)
    distance = _column(artifacts, "perturbation_distance", n, math.nan)
    return {
        name: SampleResult(
            _VERDICT.get(verdicts[i], str(verdicts[i])),
            class_name(classes, int(after[i])) if after[i] >= 0 else "",
            f"{distance[i]:.4g}" if math.isfinite(distance[i]) else "",
            by,
        )
        for i, (name, by) in enumerate(zip(artifacts.sample_names, _deciders(artifacts, n), strict=True))
    }


def _column(artifacts: Artifacts, key: str, n: int, missing: float) -> list[float]:
    values = artifacts.data.get(key)
    return values.tolist() if isinstance(values, Tensor) and len(values) == n else [missing] * n


def _deciders(artifacts: Artifacts, n: int) -> list[str]:
    """Which step, run, epsilon or severity decided each sample; empty text for none."""
    data = artifacts.data
    for key, names_key in (("decided_by", "decided_by_names"), ("broken_by", "runs")):
        indices, names = data.get(key), names_in(artifacts.metadata.kwargs, names_key)
        if isinstance(indices, Tensor) and names and len(indices) == n:
            return [names[i] if 0 <= i < len(names) else "" for i in indices.tolist()]
    for key, title, most in (("critical_epsilon", "critical epsilon", math.inf), ("minimal_severity", "severity", 6)):
        values = data.get(key)
        if isinstance(values, Tensor) and len(values) == n:
            return [f"{title} {v:.4g}" if v < most else "" for v in values.tolist()]
    return [""] * n
