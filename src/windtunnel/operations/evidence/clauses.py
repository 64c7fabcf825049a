"""Map measurements to the clauses of two documents that ask for them. A statement has its artifact; nothing is evaluated.

EU AI Act: Regulation (EU) 2024/1689, Article 15. ISO/IEC 24029-2:2023, robustness properties of neural networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from windtunnel.core.contracts import SMOOTHED_MODEL, AssessmentKind
from windtunnel.core.sample_states import SampleState
from windtunnel.records.basis import Basis, basis_of, stated
from windtunnel.records.files import METADATA_FILE
from windtunnel.records.layout import CLEAN, ROBUSTNESS, SUMMARY
from windtunnel.records.metadata import Metadata, rate
from windtunnel.records.sandwich import layers_in

Run = Mapping[str, Metadata]  # by name of the assessment, and `summary`
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
    measured: Callable[[Run], Iterator[Statement]]
    beyond: str


def _stated(metadata: Metadata, key: str) -> str:
    value = rate(metadata.metrics, key)
    assert value is not None  # whoever asks has looked for the metric
    return stated(value, basis_of(metadata, key))


def _file(name: str) -> str:
    return f"{SUMMARY if name == 'summary' else ROBUSTNESS / name}/{METADATA_FILE}"


def _of(run: Run, kind: AssessmentKind, metric: str) -> Iterator[tuple[str, Metadata]]:
    for name, metadata in run.items():
        if name not in {"clean", "summary"} and metadata.assessment_kind == kind and metric in metadata.metrics:
            yield name, metadata


def _accuracy(run: Run) -> Iterator[Statement]:
    text = f"Accuracy without perturbation is {_stated(run['clean'], 'clean_accuracy')}."
    yield Statement(text, f"{CLEAN}/{METADATA_FILE}")


def _disturbances(run: Run) -> Iterator[Statement]:
    for name, metadata in _of(run, AssessmentKind.STATISTICAL_SAMPLING, "corrupted_accuracy"):
        accuracy = _stated(metadata, "corrupted_accuracy")
        text = f"Mean accuracy under the corruptions of {name}, {metadata.algorithm}, is {accuracy}."
        yield Statement(text, _file(name))


def _evasion(run: Run) -> Iterator[Statement]:
    for name, metadata in _of(run, AssessmentKind.EMPIRICAL_ATTACK, "adversarial_accuracy"):
        text = (
            f"Accuracy left by {name}, {metadata.library} {metadata.algorithm}, is "
            f"{_stated(metadata, 'adversarial_accuracy')}."
        )
        yield Statement(text, _file(name))
    summary = run["summary"].metrics
    for layer in layers_in(summary)[:1]:
        states = ", ".join(f"{SampleState(state).words} {count}" for state, count in layer.states.items())
        worst = f"No attack ran at {layer.budget}, so there is no worst-case accuracy."
        if layer.worst_case:
            worst = f"Worst-case accuracy is {stated(layer.worst_case, Basis.of_layer(layer))}."
        yield Statement(f"{worst} Of all {layer.n} samples: {states}.", _file("summary"))


def _of_a_smoothed_model(metadata: Metadata) -> bool:
    """Return True if the certificates are of randomised smoothing: of another model, in probability, and without bounds of logits."""
    return SMOOTHED_MODEL in metadata.semantics.families


def _stability(run: Run) -> Iterator[Statement]:
    for name, metadata in _of(run, AssessmentKind.FORMAL_VERIFICATION, "certified_accuracy"):
        smoothed = _of_a_smoothed_model(metadata)
        verified = "of the smoothed model is certified, in probability," if smoothed else "is verified"
        text = (
            f"The class {verified} unchanged in the whole ball for {_stated(metadata, 'certified_accuracy')} of the samples, "
            f"by {name}, {metadata.library} {metadata.algorithm}."
        )
        yield Statement(text, _file(name))


def _sensitivity(run: Run) -> Iterator[Statement]:
    for name, metadata in _of(run, AssessmentKind.EMPIRICAL_ATTACK, "median_critical_epsilon"):
        epsilon, basis = metadata.metrics["median_critical_epsilon"], Basis.of(metadata)
        text = f"The median smallest perturbation that changes a class is {epsilon} ({basis.norm}, {basis.samples}), by {name}."
        yield Statement(text, _file(name))


def _reachability(run: Run) -> Iterator[Statement]:
    for name, metadata in _of(run, AssessmentKind.FORMAL_VERIFICATION, "verified_rate"):
        if metadata.library in {"auto-LiRPA", "windtunnel"} and not _of_a_smoothed_model(metadata):
            text = (
                f"Bounds of every logit over the ball {Basis.of(metadata).budget} were computed by {name} for its "
                f"{metadata.metrics.get('n_samples')} samples; they are `output_bounds` of its robustness_data.pt."
            )
            yield Statement(text, _file(name))


def _nothing(run: Run) -> Iterator[Statement]:
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
