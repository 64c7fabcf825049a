"""The vocabulary and the data contracts of windtunnel (see docs/architecture.md).

This module is at the bottom: it imports nothing of ours but the regions that a `Norm` may be. Every name here is public to users,
in `metadata.json` or in `robustness_data.pt`, so a value is added, never renamed and never removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias


class Case(StrEnum):
    """The worst perturbation of a region, or the average one."""

    WORST_CASE = "worst_case"
    AVERAGE_CASE = "average_case"


class AssessmentKind(StrEnum):
    """Kind of evidence that an assessment gives (level 1 of the taxonomy)."""

    EMPIRICAL_ATTACK = "empirical_attack"
    FORMAL_VERIFICATION = "formal_verification"
    STATISTICAL_SAMPLING = "statistical_sampling"

    @property
    def case(self) -> Case:
        """The case (level 2), derived from the kind and never stored on its own."""
        return Case.AVERAGE_CASE if self is AssessmentKind.STATISTICAL_SAMPLING else Case.WORST_CASE


class ThreatModel(StrEnum):
    """Access of the adversary to the model."""

    WHITE_BOX = "white_box"
    BLACK_BOX_SCORE = "black_box_score"
    BLACK_BOX_DECISION = "black_box_decision"
    NOT_APPLICABLE = "not_applicable"


class Objective(StrEnum):
    """Goal of the adversary: any wrong class, or one target class."""

    UNTARGETED = "untargeted"
    TARGETED = "targeted"


class Norm(StrEnum):
    """Measure of a perturbation: a norm, or the parameters of a transformation, as in `Norm("rotation=10.0")`.

    The latter are members that are created on first use (see `core.transformations`), one for each region.
    """

    LINF = "Linf"
    L2 = "L2"
    L1 = "L1"
    L0 = "L0"
    LATENT_L2 = "latent_L2"  # scaled L2 norm of a change of latent code: ||dl||_2 / sqrt(n_L)

    @classmethod
    def _missing_(cls, value: object) -> Norm | None:
        from windtunnel.core.transformations import transformation_of

        transformation = transformation_of(value) if isinstance(value, str) else None
        if transformation is None:
            return None
        existing = cls._value2member_map_.get(transformation.text)
        if isinstance(existing, Norm):
            return existing
        member = str.__new__(cls, transformation.text)
        member._name_ = member._value_ = transformation.text
        cls._value2member_map_[transformation.text] = member
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[Norm], tuple[str]]:
        """Pickle by value: Python 3.11.0 to 3.11.3 pickle by name, by which a region is not found."""
        return Norm, (self.value,)


class Randomness(StrEnum):
    """Source of an algorithm's randomness: it decides whether a seed reproduces the result."""

    DETERMINISTIC = "deterministic"  # two runs are equal whatever the seed
    GLOBAL_RNG = "global_rng"  # draws from torch's, numpy's or random's global stream, which we seed around the call
    SELF_SEEDED = "self_seeded"  # takes a seed of its own, which we pass


class Capability(StrEnum):
    """Ability of a model's backend, and requirement of an algorithm."""

    FORWARD = "forward"
    AUTOGRAD = "autograd"
    ONNX_GRAPH = "onnx_graph"


class Verdict(IntEnum):
    """Outcome for one sample. The integer codes are fixed for ever."""

    ATTACK_SUCCEEDED = 1
    ATTACK_FAILED = 2
    VERIFIED = 3
    FALSIFIED = 4
    UNKNOWN = 5
    ERROR = 6
    CORRECT_UNDER_PERTURBATION = 7
    MISCLASSIFIED_UNDER_PERTURBATION = 8

    @property
    def label(self) -> str:
        """The name used in files and tables, for example `attack_succeeded`."""
        return self.name.lower()


# Category of an algorithm whose certificates are of a smoothed model, not of the model under assessment.
SMOOTHED_MODEL = "smoothed_model"

VERDICT_CODES: dict[str, int] = {verdict.label: int(verdict) for verdict in Verdict}

# What every declared value may hold in a JSON file.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


@dataclass(frozen=True, slots=True)
class PerturbationBudget:
    """Worst-case perturbation region: all inputs within `epsilon` of the clean one under `norm`.

    `epsilon` is in the units of the model's input: [0, 1] pixels, or those of tabular features. `None` means that the algorithm
    has no bound (a minimum-norm attack without one); under the parameters of a transformation it is the share of each half range.
    `step_size` and `steps` say how it searched.
    """

    norm: Norm
    epsilon: float | None
    step_size: float | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class CorruptedBudget(PerturbationBudget):
    """Worst-case perturbation region around corrupted images; corruption_name: the suites or corruptions, as the entry names them."""

    corruption_name: str = ""


@dataclass(frozen=True, slots=True)
class PerturbationDistribution:
    """Average-case perturbation region: a named random corruption at a severity (0 = none).

    A suite of corruptions has `severities` in place of one severity: all that it ran at, ascending.
    """

    corruption_name: str
    severity: int | None = None
    severities: tuple[int, ...] | None = None


PerturbationRegion: TypeAlias = PerturbationBudget | PerturbationDistribution


@dataclass(frozen=True, slots=True)
class Caveat:
    """A fact that limits what a number means.

    `code` is a stable slug (`pseudo_labels`, `beyond_budget`, or a sanity check's id such as `C3`), `text` one or
    two sentences for the reader of a report, `samples` the ids it concerns where it concerns only some.
    """

    code: str
    text: str
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One registry row: the single source of an algorithm's semantics.

    `key` is unique: (library, name). `requires` is what the model's backend must be able to do.
    """

    library: str
    name: str
    kind: AssessmentKind
    threat_model: ThreatModel
    norm: Norm | None
    categories: frozenset[str]
    randomness: Randomness
    requires: frozenset[Capability]
    minimum_norm: bool = False
    summary: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(library, name)."""
        return (self.library, self.name)


@dataclass(frozen=True, slots=True)
class Semantics:
    """Meaning of one assessment, derived from the registry row of the algorithm that ran."""

    algorithm: Algorithm
    perturbation: PerturbationRegion
    objective: Objective = Objective.UNTARGETED
    target_classes: tuple[int, ...] | str | None = None
