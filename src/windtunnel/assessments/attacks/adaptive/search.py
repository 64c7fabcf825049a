"""Choose, by successive halving, the remedy and the loss that break most of a few survivors, and attack the rest with them.

Jamieson, Talwalkar 2016, arXiv 1502.07943 (successive halving); Croce, Hein 2020, arXiv 2003.01690 (APGD).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from windtunnel.assessments.attacks.adaptive.obstacles import NAMES_OF_OPERATIONS, Diagnosis, ObstacleKind
from windtunnel.assessments.attacks.adaptive.surrogates import GradientRemedy, straight_through
from windtunnel.core.batches import evenly_spaced
from windtunnel.core.contracts import Caveat, Json, Norm
from windtunnel.core.statistics import median

PROBED = 12  # survivors on which candidates are compared
RUNGS = (8, 20, 50)  # steps of the candidates, halved between rungs
STEPS = 100  # of the winner on the rest
DESIRED_MARGIN = 5.0  # of rescaled logits
NOISE_DRAWS = 8
# APGD ends where a sample is just broken, which many draws of a random model then get right, and returns the clean input where none
# of its draws was wrong; PGD goes on.
DEEPER = {Norm.LINF: "PGD", Norm.L2: "PGDL2"}
DEEPER_STEPS = 40
_BOUNDARY, _QUERIES = "HopSkipJumpAttack", 150  # queries at most for one estimate of a direction

_OPERATIONS = (*NAMES_OF_OPERATIONS, ObstacleKind.ITERATION, ObstacleKind.CUSTOM_BACKWARD, ObstacleKind.GRADIENT_AWARE)
_STEPS_OF_KIND = (ObstacleKind.SIGN, ObstacleKind.COMPARISON, ObstacleKind.SELECTION, ObstacleKind.CUSTOM_BACKWARD)
# Answered by the losses of standard that do not change with the scale of the logits, but for their last bits.
SCALES = (ObstacleKind.LARGE_LOGITS, ObstacleKind.TINY_LOGITS, ObstacleKind.PROBABILITIES)
# Honest models have these too: where there is no other, adapting takes this share of the passes of standard at most.
COMMON, SHARE_FOR_COMMON = (*SCALES, ObstacleKind.WEAK_GRADIENT, ObstacleKind.LOW_PRECISION), 0.25
_MISLEADING = (
    ObstacleKind.DISCONTINUOUS,
    ObstacleKind.WRONG_GRADIENT,
    ObstacleKind.WEAK_GRADIENT,
    ObstacleKind.SELECTION,
)


STRAIGHT_THROUGH = f"{straight_through.__module__}:{straight_through.__name__}"
STUDENTS = [
    GradientRemedy("gradient of a distilled student", student="gradient"),
    GradientRemedy("transfer from a distilled student", student="logits"),
]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to attack: an attack of torchattacks or foolbox, its loss and steps, on a model under a remedy."""

    remedy: GradientRemedy
    algorithm: str
    loss: str
    steps: int
    restarts: int = 1
    library: str = "torchattacks"

    @property
    def name(self) -> str:
        """Return it in words, as reports show it."""
        if self.algorithm == _BOUNDARY:
            return f"boundary search by {_BOUNDARY}, {self.steps} steps"
        if self.algorithm in DEEPER.values():
            return f"PGD, {self.steps} steps, {self.remedy.name}"
        attack = "APGD-T" if self.algorithm == "APGDT" else f"APGD-{self.loss.upper()}"
        return f"{attack}, {self.steps} steps, {self.remedy.name}"

    @property
    def params(self) -> dict[str, int | str]:
        """Return the arguments of the library's attack."""
        if self.algorithm == _BOUNDARY:
            return {"steps": self.steps, "max_gradient_eval_steps": _QUERIES}
        if self.algorithm in DEEPER.values():  # whose steps are the budget's
            return {}
        common: dict[str, int | str] = {"steps": self.steps, "n_restarts": self.restarts}
        return common if self.algorithm == "APGDT" else {**common, "loss": self.loss}

    @property
    def passes(self) -> int:
        """Return about how many passes it takes for a sample that it does not break, forwards and backwards."""
        if self.algorithm == _BOUNDARY:
            return self.steps * _QUERIES
        targets = 9 if self.algorithm == "APGDT" else 1
        return 2 * self.steps * self.restarts * targets * self.remedy.calls


# The answer to a sample is a mean over draws, or over batches.
DRAWN = (ObstacleKind.RANDOM, ObstacleKind.BATCH)
# Models whose answers change between calls have no boundary to walk along.
CHANGING = (*DRAWN, ObstacleKind.STATE)
# Where neither a remedy nor a student breaks half of the compared samples: a walk along the boundary, by the classes alone.
BOUNDARY = Configuration(GradientRemedy("boundary search"), _BOUNDARY, "", 10, library="foolbox")


DIRECTIONS, MEASURED_STEPS = 64, 20  # of the gradient that is measured by queries, two for each direction


def measured(epsilon: float, num_classes: int) -> Configuration:
    """Return the attack that needs no gradient of anything: differences of the logits within half of epsilon stand in for it."""
    remedy = GradientRemedy("a gradient measured by queries", noise=epsilon / 2, directions=DIRECTIONS)
    return Configuration(remedy, "APGD", "dlr" if num_classes >= 3 else "ce", MEASURED_STEPS)


def remedies_for(diagnosis: Diagnosis, epsilon: float, *, may_rewrite: bool) -> list[GradientRemedy]:
    """Return the remedies that answer the obstacles; none where there are none.

    Args:
        diagnosis: The obstacles.
        epsilon: Largest change of an element, by which noise on the inputs is measured.
        may_rewrite: False where the user's own stand-in gives the derivative (`adapt`).
    """
    if not diagnosis.obstacles:
        return []
    is_rescaled = diagnosis.has(*SCALES)
    base = GradientRemedy(
        "the model's own gradient",
        draws=diagnosis.draws,
        fresh_calls=diagnosis.calls * diagnosis.has(ObstacleKind.STATE),
        has_neighbours=diagnosis.has(ObstacleKind.BATCH),
        scale=DESIRED_MARGIN / max(diagnosis.margin, 1e-30) if is_rescaled else 1.0,
    )
    remedies = [replace(base, name=_named(base))] if _named(base) != base.name else []
    if not may_rewrite:
        return remedies
    straight = replace(
        base,
        name="straight-through surrogates",
        operations=diagnosis.is_cut or diagnosis.has(*_OPERATIONS),
        custom=diagnosis.has(ObstacleKind.CUSTOM_BACKWARD, ObstacleKind.GRADIENT_HOOK),
        saturated=diagnosis.saturated,
        enters_at=diagnosis.enters_at,
        hidden=diagnosis.has(ObstacleKind.GRADIENT_AWARE),
        finite=diagnosis.has(ObstacleKind.GRADIENT_NOT_FINITE),
        widened=diagnosis.has(ObstacleKind.LOW_PRECISION),
    )
    if straight.rewrites:
        remedies.append(straight)
        if diagnosis.has(*_STEPS_OF_KIND):
            remedies.append(replace(straight, name="narrow smooth surrogates", width=0.3))
    if diagnosis.logits_at is not None:
        remedies.append(
            replace(straight, name="logits before the last operations", logits_at=diagnosis.logits_at, scale=1.0)
        )
    if diagnosis.identity_at is not None:
        front = replace(straight, name="identity in place of the preprocessing", identity_at=diagnosis.identity_at)
        remedies.append(
            front if diagnosis.logits_at is None else replace(front, logits_at=diagnosis.logits_at, scale=1.0)
        )
    if diagnosis.has(*_MISLEADING):
        for share in (0.25, 1.0):
            name = f"mean gradient over noise of {share:g} epsilon"
            remedies.append(
                replace(straight, name=name, noise=share * epsilon, draws=max(NOISE_DRAWS, diagnosis.draws))
            )
    return remedies


def _named(base: GradientRemedy) -> str:
    parts = [
        *([f"mean gradient over {base.draws} draws"] if base.draws > 1 else []),
        *(["mean gradient over batches"] if base.has_neighbours else []),
        *(["rescaled logits"] if base.scale != 1.0 else []),
        *(["a fresh copy for each call"] if base.fresh_calls else []),
    ]
    return ", ".join(parts) or base.name


# Attack n samples with a configuration; returns their margin losses, float (n,), positive where a sample is broken.
Attempt = Callable[[Configuration, Tensor], Tensor]


def halve(candidates: list[Configuration], probe: Tensor, attempt: Attempt) -> list[Configuration]:
    """Return the candidates by the number of broken samples of `probe`, the best first.

    Each rung attacks the same samples with the better half of the candidates before it, and more steps.
    """
    ranked, beaten = candidates, list[Configuration]()
    for rung, steps in enumerate(RUNGS if candidates else ()):
        scores = []
        for candidate in ranked:
            losses = attempt(replace(candidate, steps=steps), probe).double().clamp(-1e6, 1e6)
            scores.append((float((losses > 0).double().mean()), median(losses.tolist()) or 0.0))
        order = sorted(range(len(ranked)), key=lambda i: scores[i], reverse=True)
        ranked = [ranked[i] for i in order]
        if scores[order[0]][0] == 1.0 or rung == len(RUNGS) - 1:
            break
        half = max(2, (len(ranked) + 1) // 2)
        ranked, beaten = ranked[:half], ranked[half:] + beaten
    return ranked + beaten


def candidates_of(remedies: list[GradientRemedy], num_classes: int, deeper: str = "") -> list[Configuration]:
    """Return each remedy under each loss of APGD that is defined for the number of classes, or under `deeper`."""
    losses = ("dlr", "ce") if num_classes >= 3 and not deeper else ("ce",)
    return [Configuration(remedy, deeper or "APGD", loss, RUNGS[0]) for remedy in remedies for loss in losses]


def best_of_each_remedy(ranked: list[Configuration]) -> list[Configuration]:
    """Return the first configuration of each remedy, with the steps that attack the rest."""
    best = dict[str, Configuration]()
    for configuration in ranked:
        steps = DEEPER_STEPS if configuration.algorithm in DEEPER.values() else STEPS
        best.setdefault(configuration.remedy.name, replace(configuration, steps=steps))
    return list(best.values())


def finals(best: Configuration, num_classes: int) -> Iterator[Configuration]:
    """Yield what attacks the rest at last: the winner's targeted form, and the winner with restarts."""
    if best.algorithm in DEEPER.values():
        yield best
        return
    if num_classes >= 4:
        yield replace(best, algorithm="APGDT", steps=STEPS // 4)
    yield replace(best, restarts=3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of adapting: the diagnosis, the share of all samples that stands before and after it, the configuration that broke most.

    share_of_passes: of the entry's passes, the share that adapting took after the attacks of standard. failed_remedies: those
    under which the model raises, with the error. left_out: the attacks on the rest that `SHARE_FOR_COMMON` left no passes for.
    """

    diagnosis: Diagnosis
    before: float
    after: float
    winner: str
    share_of_passes: float = 0.0
    failed_remedies: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def caveats(self) -> Iterator[Caveat]:
        """Yield what the cut of the passes left out."""
        if self.left_out:
            kinds = ", ".join(obstacle.kind.replace("_", " ") for obstacle in self.diagnosis.obstacles)
            yield Caveat(
                "adapting_cut",
                f"Adapting took {SHARE_FOR_COMMON:.0%} of the passes of standard at most, as honest models have these obstacles "
                f"too ({kinds}): {len(self.left_out)} of its attacks did not run. Set params.passes to run them.",
            )

    def sentence(self) -> str:
        """Return the result in a sentence for the first page."""
        count = len(self.diagnosis.obstacles)
        if not count:
            return f"{self.after:.1%} under the attacks of standard; nothing was found that hides gradients."
        reason = self.diagnosis.obstacles[0].sentence
        more = f" (and {count - 1} more)" if count > 1 else ""
        if not self.winner:
            return f"{self.before:.1%} under the attacks of standard, and no adapted attack broke more; obstacle: {reason}{more}."
        return f"{self.before:.1%} under the attacks of standard; {self.after:.1%} after adapting to it ({self.winner}): {reason}{more}."

    def lines(self) -> dict[str, Json]:
        """Return options of an attack by gradients that answer the obstacles, as in params.yaml; empty where none does."""
        is_stopped = self.diagnosis.has(*_OPERATIONS, ObstacleKind.GRADIENT_HOOK, ObstacleKind.GRADIENT_NOT_FINITE)
        return {
            **({"adapt": STRAIGHT_THROUGH} if is_stopped else {}),
            **({"eot": self.diagnosis.draws} if self.diagnosis.draws > 1 else {}),
        }

    def record(self) -> dict[str, Json]:
        """Return the JSON value for metadata.json."""
        return {
            "obstacles": [obstacle.record() for obstacle in self.diagnosis.obstacles],
            "accuracy_before": self.before,
            "accuracy_after": self.after,
            "winner": self.winner,
            "share_of_passes": self.share_of_passes,
            **({"lines": lines} if (lines := self.lines()) else {}),
            **({"failed_remedies": list(self.failed_remedies)} if self.failed_remedies else {}),
            **({"left_out": list(self.left_out)} if self.left_out else {}),
            "sentence": self.sentence(),
        }


def probe_of(survivors: Tensor) -> Tensor:
    """Return the survivors on which candidates are compared: evenly spaced ones."""
    return survivors[evenly_spaced(len(survivors), PROBED)]
