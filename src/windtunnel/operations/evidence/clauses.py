"""Map measurements to the clauses of two documents that ask for them. A statement has its artifact; nothing is evaluated.

EU AI Act: Regulation (EU) 2024/1689, Article 15. ISO/IEC 24029-2:2023, robustness properties of neural networks.
"""

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
Statements = Iterator[tuple[str, str]]  # a sentence, and the file that holds the number in it
AI_ACT, ISO = "EU AI Act, Article 15", "ISO/IEC 24029-2"


@dataclass(frozen=True, slots=True)
class Clause:
    """One demand. `measured` gives the statements of a run; `beyond` says what of the demand nothing here measures."""

    document: str
    number: str
    words: str
    measured: Callable[[Run], Statements]
    beyond: str


def _stated(metadata: Metadata, key: str) -> str:
    value = rate(metadata.metrics, key)
    assert value is not None  # whoever asks has looked for the metric
    return stated(value, basis_of(metadata, key))


def _each(kind: AssessmentKind, metric: str, sentence: Callable[[str, Metadata], str]) -> Callable[[Run], Statements]:
    """Return what yields the `sentence` of each assessment of a kind that has a metric; an empty one is left out."""

    def statements(run: Run) -> Statements:
        for name, metadata in run.items():
            is_of_kind = name not in {"clean", "summary"} and metadata.assessment_kind == kind
            if is_of_kind and metric in metadata.metrics and (text := sentence(name, metadata)):
                yield text, f"{ROBUSTNESS / name}/{METADATA_FILE}"

    return statements


def _accuracy(run: Run) -> Statements:
    text = f"Accuracy without perturbation is {_stated(run['clean'], 'clean_accuracy')}."
    yield text, f"{CLEAN}/{METADATA_FILE}"


def _disturbance(name: str, metadata: Metadata) -> str:
    accuracy = _stated(metadata, "corrupted_accuracy")
    return f"Mean accuracy under the corruptions of {name}, {metadata.algorithm}, is {accuracy}."


def _attack(name: str, metadata: Metadata) -> str:
    accuracy = _stated(metadata, "adversarial_accuracy")
    return f"Accuracy left by {name}, {metadata.library} {metadata.algorithm}, is {accuracy}."


def _evasion(run: Run) -> Statements:
    yield from _each(AssessmentKind.EMPIRICAL_ATTACK, "adversarial_accuracy", _attack)(run)
    for layer in layers_in(run["summary"].metrics)[:1]:
        states = ", ".join(f"{SampleState(state).words} {count}" for state, count in layer.states.items())
        worst = f"No attack ran at {layer.budget}, so there is no worst-case accuracy."
        if layer.worst_case:
            worst = f"Worst-case accuracy is {stated(layer.worst_case, Basis.of_layer(layer))}."
        of_all = f" Of all {layer.n} samples: {states}." if states else ""  # an older version recorded no states
        yield f"{worst}{of_all}", f"{SUMMARY}/{METADATA_FILE}"


def _of_a_smoothed_model(metadata: Metadata) -> bool:
    """Return True if the certificates are of randomised smoothing: of another model, in probability, and without bounds of logits."""
    return SMOOTHED_MODEL in metadata.semantics.families


def _stability(name: str, metadata: Metadata) -> str:
    smoothed = _of_a_smoothed_model(metadata)
    verified = "of the smoothed model is certified, in probability," if smoothed else "is verified"
    return (
        f"The class {verified} unchanged in the whole ball for {_stated(metadata, 'certified_accuracy')} of the samples, "
        f"by {name}, {metadata.library} {metadata.algorithm}."
    )


def _sensitivity(name: str, metadata: Metadata) -> str:
    epsilon, basis = metadata.metrics["median_critical_epsilon"], Basis.of(metadata)
    return f"The median smallest perturbation that changes a class is {epsilon} ({basis.norm}, {basis.samples}), by {name}."


def _reachability(name: str, metadata: Metadata) -> str:
    if metadata.library not in {"auto-LiRPA", "windtunnel"} or _of_a_smoothed_model(metadata):
        return ""
    return (
        f"Bounds of every logit over the ball {Basis.of(metadata).budget} were computed by {name} for its "
        f"{metadata.metrics.get('n_samples')} samples; they are `output_bounds` of its robustness_data.pt."
    )


def _nothing(run: Run) -> Statements:
    yield from ()


CLAUSES = (
    Clause(AI_ACT, "15(1), 15(3)", "accuracy, and its declared level and metrics", _accuracy,
           "whether this level is appropriate for a purpose, and over a life cycle"),
    Clause(AI_ACT, "15(4)", "resilience to errors, faults and inconsistencies of the environment",
           _each(AssessmentKind.STATISTICAL_SAMPLING, "corrupted_accuracy", _disturbance),
           "faults of hardware and software, redundancy and fail-safe plans, feedback loops of systems that go on learning"),
    Clause(AI_ACT, "15(5)", "resilience to inputs made to cause a mistake (adversarial examples, model evasion)", _evasion,
           "data poisoning, model poisoning, attacks on confidentiality, and the security of the system around the model"),
    Clause(ISO, "stability", "the output stays within a range over a domain",
           _each(AssessmentKind.FORMAL_VERIFICATION, "certified_accuracy", _stability),
           "domains other than norm balls around the samples"),
    Clause(ISO, "sensitivity", "how far the output moves with the input",
           _each(AssessmentKind.EMPIRICAL_ATTACK, "median_critical_epsilon", _sensitivity), "a bound of the derivative over a domain"),
    Clause(ISO, "relevance", "which parts of an input decide the output", _nothing, "all of it: no attribution is computed"),
    Clause(ISO, "reachability", "which outputs a domain of inputs can reach",
           _each(AssessmentKind.FORMAL_VERIFICATION, "verified_rate", _reachability),
           "closed loops with a controlled system"),
)  # fmt: skip
