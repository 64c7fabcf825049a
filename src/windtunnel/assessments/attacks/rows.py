"""Registry record of an attack: its semantics, and how to call its library."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from windtunnel.core.contracts import Algorithm, AssessmentKind, Capability, Norm, Randomness, ThreatModel


class Targeting(StrEnum):
    """Tells whether an attack can, cannot or must be given target classes."""

    NO = "no"
    YES = "yes"
    REQUIRED = "required"


class Invoker(StrEnum):
    """The calling convention of an attack: plainly, or in one of the ways its library needs."""

    PLAIN = "plain"
    NEXT_CLASS = "next_class"  # saliency attacks that always aim: untargeted means the next class
    MANY_ATTACKS = "many_attacks"  # wraps other attacks of its library, named in params
    SURROGATES = "surrogates"  # trains copies of the model on the assessed samples
    POOL = "pool"  # draws its examples from a pool of samples
    STARTING_POINTS = "starting_points"  # walks from a misclassified point towards the clean one
    UNBOUNDED = "unbounded"  # is no norm-bounded attack and takes no epsilon
    ANY_DISTANCE = "any_distance"  # drops what it finds beyond epsilon, which we keep
    FUNCTION = "function"  # the user's own: is handed the batch, the whole budget and a seed
    ENSEMBLE = "ensemble"  # ours: members one after another, each on what is left
    ADAPTIVE = "adaptive"  # ours: an ensemble, and then attacks that answer what hides the model's gradients


# Where a foolbox attack takes its epsilon: at the call, not at the constructor.
AT_CALL = "(call)"
STOP_EARLY = "stop_early"  # parameter: leave a sample whose margin falls too slowly to reach zero in time
FIT_SAMPLES = "fit_samples"  # parameter of an attack that `fits`: on how many samples at most
# What a function of the user's is called with, in this order.
FUNCTION_ARGUMENTS = ("model", "inputs", "labels", "budget", "seed")


@dataclass(frozen=True, slots=True)
class AttackRow:
    """One registry row and the facts of its call.

    epsilon, step, steps, seed, classes: the library's parameter that takes the budget's epsilon, step size and steps,
    our seed, the number of classes; None where it has none. An attack without `epsilon` finds its own distance, and
    counts as successful only within the budget. norms: those that `norm_key` chooses between, else the row's own.
    three_channels: its kernels are built for three channels. min_classes: its loss needs so many. defaults: values of
    parameters for which the library has none. fixed_by: parameters, with values under which the attack draws nothing at
    random. keeps_clean: it returns the clean input, and not where it stood, for a sample that it did not break. counted: it asks
    for no gradients and is offered by `queries` too, an image at a time with every evaluation of the model counted. transforms: it
    searches the parameters of a transformation, and its adapter returns them beside the images. fits: it is fitted on samples outside
    of the draw. seconds: about
    what one sample of 3x32x32 takes on one processor, of attacks slow enough to announce; they grow with the number of inputs to
    the power of `growth`.
    """

    algorithm: Algorithm
    epsilon: str | None = None
    step: str | None = None
    steps: str | None = None
    seed: str | None = None
    classes: str | None = None
    norm_key: str | None = None
    norms: tuple[Norm, ...] = ()
    targeting: Targeting = Targeting.NO
    invoker: Invoker = Invoker.PLAIN
    three_channels: bool = False
    min_classes: int = 2
    defaults: Mapping[str, object] = field(default_factory=dict)
    keeps_clean: bool = False
    counted: bool = False
    transforms: bool = False
    fits: bool = False
    fixed_by: tuple[tuple[str, bool | float], ...] = ()
    seconds: float = 0.0
    growth: int = 1

    @property
    def is_ensemble(self) -> bool:
        """True if it runs attacks of other rows."""
        return self.invoker in (Invoker.ENSEMBLE, Invoker.ADAPTIVE)

    @property
    def allowed_norms(self) -> tuple[Norm, ...]:
        """The norms it can work under; all of them where it is bound to none."""
        return self.norms or ((self.algorithm.norm,) if self.algorithm.norm else tuple(DISTANCE_NORMS))

    def randomness(self, effective: Mapping[str, object]) -> Randomness:
        """Return the source of its randomness under the effective parameters; DETERMINISTIC where they leave none."""
        fixed = self.fixed_by and all(effective.get(key) == value for key, value in self.fixed_by)
        return Randomness.DETERMINISTIC if fixed else self.algorithm.randomness

    @property
    def managed(self) -> frozenset[str]:
        """The library's parameters that windtunnel sets, so that nobody may set them in `params`."""
        called = FUNCTION_ARGUMENTS if self.invoker is Invoker.FUNCTION else ()
        return frozenset(key for key in (self.epsilon, self.norm_key, self.classes, *called) if key)


DISTANCE_NORMS = (Norm.LINF, Norm.L2, Norm.L1, Norm.L0)


def algorithm(
    library: str,
    name: str,
    threat_model: ThreatModel,
    norm: Norm | None,
    categories: str,
    randomness: Randomness,
    *,
    minimum_norm: bool = False,
    summary: str = "",
) -> Algorithm:
    """Return a registry row of an empirical attack; `categories` are words separated by spaces."""
    needs = {Capability.FORWARD}
    if threat_model is ThreatModel.WHITE_BOX:
        needs.add(Capability.AUTOGRAD)
    return Algorithm(
        library=library,
        name=name,
        kind=AssessmentKind.EMPIRICAL_ATTACK,
        threat_model=threat_model,
        norm=norm,
        categories=frozenset(categories.split()),
        randomness=randomness,
        requires=frozenset(needs),
        minimum_norm=minimum_norm,
        summary=summary,
    )


def attack_row(
    library: str,
    name: str,
    threat_model: ThreatModel,
    norm: Norm | None,
    categories: str,
    randomness: Randomness,
    *,
    minimum_norm: bool = False,
    summary: str = "",
    **facts: Any,
) -> AttackRow:
    """Return a registry row with the facts of its call, fields of `AttackRow`; the rest is as for `algorithm`."""
    return AttackRow(
        algorithm(
            library, name, threat_model, norm, categories, randomness, minimum_norm=minimum_norm, summary=summary
        ),
        **facts,
    )


FUNCTION_ROWS: tuple[AttackRow, ...] = ()  # the user knows which functions there are


def function_row(name: str) -> AttackRow:
    """Return the registry row of the function `module:function`; nothing of the user's is imported.

    White-box, the strongest that it can be, since it is handed the model; a model without gradients is handed over too.
    Its draws from the global streams are seeded.
    """
    row = algorithm("function", name, ThreatModel.WHITE_BOX, None, "custom", Randomness.GLOBAL_RNG)
    row = replace(row, requires=frozenset({Capability.FORWARD}), summary="an attack of the user's own")
    return AttackRow(row, epsilon=AT_CALL, invoker=Invoker.FUNCTION)
