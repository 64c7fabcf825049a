"""What was measured, beside the clauses of two documents that ask for it. A statement has its artifact; nothing is evaluated.

EU AI Act: Regulation (EU) 2024/1689, Article 15. ISO/IEC 24029-2:2023, robustness properties of neural networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from windtunnel.core.contracts import AssessmentKind, Json
from windtunnel.core.files import METADATA_FILE
from windtunnel.core.layout import CLEAN, ROBUSTNESS, SUMMARY

Metadata = Mapping[str, Mapping[str, Json]]  # by name of the assessment, and `summary`
AI_ACT, ISO = "EU AI Act, Article 15", "ISO/IEC 24029-2"


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence, and the file that holds the number in it."""

    text: str
    file: str


@dataclass(frozen=True, slots=True)
class Clause:
    """One demand. `measured` gives the statements of a run; `beyond` says what of the demand nothing here measures."""

    document: str
    number: str
    words: str
    measured: Callable[[Metadata], Iterator[Statement]]
    beyond: str


def _rate(metrics: Mapping[str, Json], key: str) -> str:
    low, high = metrics.get(f"{key}_ci_low"), metrics.get(f"{key}_ci_high")
    interval = (
        "" if low is None or high is None else f" (95 % interval {float(str(low)):.1%} to {float(str(high)):.1%})"
    )
    return f"{float(str(metrics[key])):.1%}{interval}"


def _block(metadata: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    block = metadata.get(key)
    return block if isinstance(block, Mapping) else {}


def _file(name: str) -> str:
    return f"{SUMMARY if name == 'summary' else ROBUSTNESS / name}/{METADATA_FILE}"


def _of(
    run: Metadata, kind: AssessmentKind, metric: str
) -> Iterator[tuple[str, Mapping[str, Json], Mapping[str, Json]]]:
    for name, metadata in run.items():
        metrics = _block(metadata, "metrics")
        if name not in {"clean", "summary"} and metadata["assessment_kind"] == kind.value and metric in metrics:
            yield name, metadata, metrics


def _ball(metadata: Mapping[str, Json]) -> str:
    region = _block(_block(metadata, "semantics"), "perturbation")
    return f"{region.get('norm')} {region.get('epsilon', 'without bound')}"


def _accuracy(run: Metadata) -> Iterator[Statement]:
    yield Statement(f"Accuracy without perturbation is {_rate(_block(run['clean'], 'metrics'), 'clean_accuracy')}.",
                    f"{CLEAN}/{METADATA_FILE}")  # fmt: skip


def _disturbances(run: Metadata) -> Iterator[Statement]:
    for name, metadata, metrics in _of(run, AssessmentKind.STATISTICAL_SAMPLING, "corrupted_accuracy"):
        text = f"Mean accuracy under the corruptions of {name} ({metadata['algorithm']}) is {_rate(metrics, 'corrupted_accuracy')}."
        yield Statement(text, _file(name))


def _evasion(run: Metadata) -> Iterator[Statement]:
    for name, metadata, metrics in _of(run, AssessmentKind.EMPIRICAL_ATTACK, "adversarial_accuracy"):
        text = (
            f"Accuracy left by {name} ({metadata['library']} {metadata['algorithm']}, {_ball(metadata)}) is "
            f"{_rate(metrics, 'adversarial_accuracy')}."
        )
        yield Statement(text, _file(name))
    summary = _block(run["summary"], "metrics")
    if "worst_case_accuracy" in summary:
        text = (
            f"Accuracy left by all attacks together, at the run's budget, is {_rate(summary, 'worst_case_accuracy')}."
        )
        yield Statement(text, _file("summary"))


def _stability(run: Metadata) -> Iterator[Statement]:
    for name, metadata, metrics in _of(run, AssessmentKind.FORMAL_VERIFICATION, "certified_accuracy"):
        text = (
            f"The class is verified unchanged in the whole ball {_ball(metadata)} for {_rate(metrics, 'certified_accuracy')} of the "
            f"samples ({name}, {metadata['library']} {metadata['algorithm']})."
        )
        yield Statement(text, _file(name))


def _sensitivity(run: Metadata) -> Iterator[Statement]:
    for name, _, metrics in _of(run, AssessmentKind.EMPIRICAL_ATTACK, "median_critical_epsilon"):
        text = (
            f"The median smallest perturbation that changes a class is {metrics['median_critical_epsilon']} ({name})."
        )
        yield Statement(text, _file(name))


def _reachability(run: Metadata) -> Iterator[Statement]:
    for name, metadata, metrics in _of(run, AssessmentKind.FORMAL_VERIFICATION, "verified_rate"):
        if metadata["library"] in {"auto-LiRPA", "windtunnel"}:
            text = (
                f"Bounds of every logit over the ball {_ball(metadata)} were computed by {name} for its {metrics.get('n_samples')} "
                f"samples; they are `output_bounds` of its robustness_data.pt."
            )
            yield Statement(text, _file(name))


def _nothing(run: Metadata) -> Iterator[Statement]:
    yield from ()


CLAUSES = (
    Clause(AI_ACT, "15(1), 15(3)", "accuracy, and its declared level and metrics", _accuracy,
           "whether this level is appropriate for a purpose, and over a life cycle"),
    Clause(AI_ACT, "15(4)", "resilience to errors, faults and inconsistencies of the environment", _disturbances,
           "faults of hardware and software, redundancy and fail-safe plans, feedback loops of systems that go on learning"),
    Clause(AI_ACT, "15(5)", "resilience to inputs made to cause a mistake (adversarial examples, model evasion)", _evasion,
           "data poisoning, model poisoning, attacks on confidentiality, and the security of the system around the model"),
    Clause(ISO, "stability", "the output stays within a range over a domain", _stability,
           "domains other than norm balls around the samples"),
    Clause(ISO, "sensitivity", "how far the output moves with the input", _sensitivity, "a bound of the derivative over a domain"),
    Clause(ISO, "relevance", "which parts of an input decide the output", _nothing, "all of it: no attribution is computed"),
    Clause(ISO, "reachability", "which outputs a domain of inputs can reach", _reachability,
           "closed loops with a controlled system"),
)  # fmt: skip
