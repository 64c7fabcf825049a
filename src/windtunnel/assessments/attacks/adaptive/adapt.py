"""Attack a model with the attacks of standard, then with remedies for the diagnosed obstacles.

Imported for entries of `algorithm: adaptive` alone, so that a change of this package re-runs no other attack.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adaptive import search
from windtunnel.assessments.attacks.adaptive.obstacles import CHANGED, FEW, SAMPLES, Diagnosis, ObstacleKind, diagnose
from windtunnel.assessments.attacks.adaptive.surrogates import (
    AmongNeighbours,
    FreshCopies,
    GradientRemedy,
    MeanOfProbabilities,
    Remedied,
)
from windtunnel.assessments.attacks.fresh_draws import DRAWS, differs
from windtunnel.assessments.attacks.plan import PlannedAttack
from windtunnel.assessments.attacks.settings import settle
from windtunnel.assessments.attacks.standins import distilled
from windtunnel.assessments.attacks.state import AttackSetup, BestResults
from windtunnel.assessments.attacks.table import ROWS
from windtunnel.core import scratch
from windtunnel.core.classifier import Classifier, copied
from windtunnel.core.contracts import Norm, PerturbationBudget, ThreatModel
from windtunnel.core.seeds import seeded

WEAK_SHARE = 0.1  # of the samples left by gradients, broken at random, above which gradients are weak
JUDGED_DRAWS = 3 * DRAWS  # of a random model, among whose examples the best is kept
STUDENT_SAMPLES, STUDENT_ABOVE = 500, 0.5  # trained where more of the compared samples than this share stand

# Attacks the samples at indices (n,) by a run; returns the margin losses of the examples before a classifier, float (n,),
# positive where a sample is broken.
Launch = Callable[[PlannedAttack, Tensor, Classifier], Tensor]


def adapt(attack: AttackSetup, state: BestResults, launch: Launch) -> search.Outcome:
    """Diagnose the model, run the attacks of standard, choose remedies on a few unbroken samples, attack the rest with them.

    Args:
        attack: The entry; the runs that are chosen are added to its `runs`.
        state: Results so far of all samples; changed.
        launch: See `Launch`.
    """
    diagnosis, module = _diagnosed(attack, state), nn.ModuleList([attack.model, attack.subject.classifier.module])
    untouched = copied(module)
    if diagnosis.is_cut:
        attack.runs[:] = [replace(run, remedy=GradientRemedy("no gradient", is_cut=True)) for run in attack.runs]
    for run in tuple(attack.runs):
        launch(run, state.living, attack.subject.classifier)
    diagnosis = _with_late_state(_with_weak_gradients(diagnosis, state, attack.runs), attack, untouched)
    if untouched is not None and diagnosis.has(ObstacleKind.STATE):
        _restore(module, untouched)
    n_standard, before, passes_before = len(attack.runs), _accuracy(attack, state), state.passes
    failed_remedies, left_out = _search(attack, diagnosis, state, launch)
    winners = state.broken_by[state.broken_by >= n_standard]
    winner = attack.runs[int(winners.mode().values)].name if len(winners) else ""
    share = (state.passes - passes_before) / max(1.0, state.passes)
    return search.Outcome(diagnosis, before, _accuracy(attack, state), winner, share, failed_remedies, left_out)


def adapted_run(where: str, configuration: search.Configuration, budget: PerturbationBudget) -> PlannedAttack:
    """Return the run of a configuration."""
    row = ROWS[configuration.library, configuration.algorithm]
    if configuration.algorithm in search.DEEPER.values():
        steps = configuration.steps
        budget = replace(budget, steps=steps, step_size=2.5 * (budget.epsilon or 0.0) / steps)
    return PlannedAttack(
        configuration.name, row, settle(where, row, configuration.params, budget), configuration.remedy
    )


def _search(
    attack: AttackSetup, diagnosis: Diagnosis, state: BestResults, launch: Launch
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Attack with the remedies; return `failed_remedies` and `left_out` of the outcome."""
    judge, is_random = _judge(attack, diagnosis), diagnosis.has(*search.DRAWN) or diagnosis.calls > 1
    deeper = search.DEEPER[attack.budget.norm] if is_random else ""
    unbroken, lucky = state.living, torch.zeros(0, dtype=torch.int64)
    if judge is not attack.subject.classifier:
        lucky = _unconfirmed(attack, state, judge)
        unbroken = state.attacked.nonzero().flatten() if is_random else torch.cat([unbroken, lucky]).sort().values
    if not len(unbroken) or not diagnosis.obstacles:
        return (), ()
    proposed = search.remedies_for(diagnosis, _element_epsilon(attack), may_rewrite=attack.entry.adapt is None)
    errors = {remedy: _error_under(attack, remedy, search.probe_of(unbroken)) for remedy in proposed}
    remedies = [remedy for remedy in proposed if not errors[remedy]]
    first = (scratch.samples_at(state.perturbed, lucky), state.logits[lucky], state.distances[lucky])
    where, classifier = f"attacks.{attack.name}", attack.subject.classifier
    classes = classifier.criterion.competing_classes(classifier.num_classes)
    passes = settle(where, attack.row, attack.entry.params, attack.budget).effective["passes"]
    allowance, withheld, left_out = int(str(passes)) * len(unbroken), 0, list[str]()
    is_common = all(obstacle.kind in search.COMMON for obstacle in diagnosis.obstacles)
    if attack.runs and is_common and "passes" not in attack.entry.params:
        withheld = max(0, allowance - int(search.SHARE_FOR_COMMON * state.passes))
        allowance -= withheld
    is_robust = torch.ones(len(attack.subject.dataset), dtype=torch.bool)

    def attempt(configuration: search.Configuration, indices: Tensor) -> Tensor:
        nonlocal allowance
        before = state.passes
        attack.runs.append(adapted_run(where, configuration, attack.budget))
        margins = launch(attack.runs[-1], indices, judge)
        allowance -= int(state.passes - before)
        is_robust[indices[margins > 0]] = False
        return margins

    probe, searches = search.probe_of(unbroken), list[search.Configuration]()
    ranked = search.halve(search.candidates_of(remedies, classes, deeper), probe, attempt)
    if float(is_robust[probe].double().mean()) > STUDENT_ABOVE:
        attack.students.append(_student(attack, judge))
        students = search.candidates_of(search.STUDENTS, classes, deeper)
        ranked = search.halve([*ranked[:1], *students], probe, attempt) + ranked[1:]
        searches = [] if diagnosis.has(*search.CHANGING) else [search.BOUNDARY]
    if not diagnosis.has(*search.CHANGING):
        searches.insert(0, search.measured(_element_epsilon(attack), classes))

    def attack_rest(configuration: search.Configuration) -> int:
        """Attack what is left, of a random model all, if passes are; return the number of samples it breaks."""
        rest = unbroken if is_random else unbroken[is_robust[unbroken]]
        if not len(rest) or configuration.passes > allowance / len(rest):
            if len(rest) and configuration.passes <= (allowance + withheld) / len(rest):
                left_out.append(configuration.name)
            return 0
        return int((attempt(configuration, rest) > 0).sum())

    if best := search.best_of_each_remedy(ranked):
        counts = [attack_rest(configuration) for configuration in best]
        finals = list(search.finals(best[counts.index(max(counts))], classes))
        searches = finals + searches if max(counts) else searches + finals
    for configuration in searches:
        attack_rest(configuration)
    _draw_until_wrong(attack, state, lucky, first)
    return tuple(f"{remedy.name}: {error}" for remedy, error in errors.items() if error), tuple(left_out)


def _error_under(attack: AttackSetup, remedy: GradientRemedy, indices: Tensor) -> str:
    """Return the model's exception under a remedy, in a line, or that its gradient is zero; empty if neither.

    Surrogates change the values in the model's own code.
    """
    point = attack.subject.dataset.inputs[indices].to(attack.subject.classifier.device).requires_grad_()
    try:
        total = Remedied(attack.model, remedy)(point).float().square().sum()
        (gradient,) = torch.autograd.grad(total, point, materialize_grads=True)
    except Exception as error:  # whatever the user's forward pass raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return "" if bool((gradient.nan_to_num(0.0, 0.0, 0.0) != 0).any()) else "no gradient passes"


def _diagnosed(attack: AttackSetup, state: BestResults) -> Diagnosis:
    """Return the obstacles of the model; the passes are charged to the samples that are attacked."""
    data, device = attack.subject.dataset, attack.subject.classifier.device
    shown = attack.subject.clean_correct.nonzero().flatten()[:SAMPLES]
    if not len(shown):
        return Diagnosis(())
    diagnosis = diagnose(
        attack.model,
        attack.subject.classifier.criterion,
        data.inputs[shown].to(device),
        data.targets[shown].to(device),
        _element_epsilon(attack),
        attack.subject.seed,
    )
    n_attacked = max(1, int(state.attacked.sum()))
    state.forwards[state.attacked] += diagnosis.forwards / n_attacked
    state.backwards[state.attacked] += diagnosis.backwards / n_attacked
    return diagnosis


def _element_epsilon(attack: AttackSetup) -> float:
    """Return the largest change of one element: epsilon under Linf, an equal share of all elements under L2."""
    epsilon, size = attack.budget.epsilon or 0.0, attack.subject.dataset.inputs[0].numel()
    return epsilon if attack.budget.norm is Norm.LINF else epsilon / size**0.5


def _with_weak_gradients(diagnosis: Diagnosis, state: BestResults, runs: list[PlannedAttack]) -> Diagnosis:
    """Add to the diagnosis if gradient attacks of standard miss samples that random search breaks."""
    searches = [i for i, run in enumerate(runs) if run.row.algorithm.threat_model is not ThreatModel.WHITE_BOX]
    by_search = sum(int((state.broken_by == i).sum()) for i in searches)
    surviving = by_search + len(state.living)
    if by_search < 2 or by_search <= WEAK_SHARE * surviving:
        return diagnosis
    sentence = f"random search breaks {by_search} of the {surviving} samples that gradient attacks left"
    return diagnosis.including(ObstacleKind.WEAK_GRADIENT, sentence)


def _with_late_state(diagnosis: Diagnosis, attack: AttackSetup, untouched: nn.Module | None) -> Diagnosis:
    """Add to the diagnosis if the model answers otherwise after the attacks of standard than a copy from before them."""
    called = copied(untouched)  # the model is restored from `untouched`, which calls would change
    if called is None or not attack.runs or diagnosis.has(*search.CHANGING):
        return diagnosis
    classifier, few = attack.subject.classifier, attack.subject.dataset.inputs[:FEW]
    before = replace(classifier, module=called[1])  # type: ignore[index]  # of a list of two
    if not differs(before.logits(few), classifier.logits(few), CHANGED):
        return diagnosis
    sentence = "answers change after the attacks of standard: the model keeps state between calls"
    return diagnosis.including(ObstacleKind.STATE, sentence)


def _restore(module: nn.Module, untouched: nn.Module) -> None:
    """Give a module that keeps state the attributes of a copy of it."""
    for part, before in zip(module.modules(), untouched.modules(), strict=False):
        if not isinstance(part, torch.jit.ScriptModule):
            vars(part).update({name: value for name, value in vars(before).items() if name != "_modules"})


def _judge(attack: AttackSetup, diagnosis: Diagnosis) -> Classifier:
    """Return the model as it counts: the mean of fresh draws or of batches, a fresh copy of one that keeps state."""
    classifier = attack.subject.classifier
    if diagnosis.has(ObstacleKind.BATCH):
        return replace(classifier, module=AmongNeighbours(classifier.module, attack.clean_batch, DRAWS))
    if diagnosis.has(ObstacleKind.RANDOM):
        return replace(classifier, module=MeanOfProbabilities(classifier.module, JUDGED_DRAWS))
    if diagnosis.has(ObstacleKind.STATE):
        return replace(classifier, module=FreshCopies(classifier.module, diagnosis.calls))
    return classifier


def _unconfirmed(attack: AttackSetup, state: BestResults, judge: Classifier) -> Tensor:
    """Return the indices of the broken samples whose stored example `judge` does not confirm; its losses become those of all."""
    broken = (state.attacked & state.succeeded).nonzero().flatten()
    with seeded(attack.subject.seed):
        logits = judge.logits(scratch.samples_at(state.perturbed, broken))
    labels = attack.subject.dataset.targets[broken]
    state.losses[broken] = judge.criterion.margin_loss(logits, labels)
    return broken[judge.criterion.is_correct(logits, labels)]


def _draw_until_wrong(
    attack: AttackSetup, state: BestResults, indices: Tensor, first: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Store a draw of the model that is wrong for samples that a lucky draw broke, at the worst examples that were found since.

    Args:
        attack: The entry.
        state: Results; changed.
        indices: int64 (n,), the samples.
        first: Examples (n, ...), logits (n, K) and distances (n,) of the lucky draws; they stay where every draw is right.
    """
    classifier, labels = attack.subject.classifier, attack.subject.dataset.targets[indices]
    right = classifier.criterion.is_correct(state.logits[indices], labels)
    with seeded(attack.subject.seed):
        for _ in range(DRAWS):
            logits = classifier.logits(scratch.samples_at(state.perturbed, indices))
            wrong = right & ~classifier.criterion.is_correct(logits, labels)
            state.logits[indices[wrong]] = logits[wrong]
            right &= ~wrong
    for stored, before in zip((state.perturbed, state.logits, state.distances), first, strict=True):
        stored[indices[right]] = before[right]


def _accuracy(attack: AttackSetup, state: BestResults) -> float:
    """Return the share of all samples that is right and not broken."""
    return float((attack.subject.clean_correct & ~state.succeeded).double().mean())


def _student(attack: AttackSetup, judge: Classifier) -> nn.Module:
    """Return a network that learned the model's answers to the assessed samples."""
    with seeded(attack.subject.seed):
        return distilled(attack.subject.dataset.inputs[:STUDENT_SAMPLES].to(judge.device), judge.module)
