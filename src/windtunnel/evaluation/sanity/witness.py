"""Group D, the witness: a short independent attack on the survivors of each budget."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.boundary.models.load import named_classifier
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability
from windtunnel.core.distances import DISTANCE
from windtunnel.core.errors import UserError
from windtunnel.core.sample_states import SampleState
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.core.transformations import place_text
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, our_check
from windtunnel.evaluation.sanity.evidence import Evidence, witness_queries
from windtunnel.evaluation.sanity.model import is_random
from windtunnel.evaluation.sanity.probes import largest_linf
from windtunnel.evaluation.summary.evidence import region_evidence
from windtunnel.evaluation.witness.balls import Ball
from windtunnel.evaluation.witness.inner import PASSES as INNER_PASSES
from windtunnel.evaluation.witness.inner import inner_classifier
from windtunnel.evaluation.witness.parameters import search_parameters
from windtunnel.evaluation.witness.search import (
    SHORT_PASSES,
    Target,
    WitnessResult,
    search,
    train_student,
    witness_passes,
)
from windtunnel.records.regions import PerturbationBall
from windtunnel.records.result import Tensors

CHECK = "D15"
NOT_VALID = 0.1  # share of the attacked samples: a worst case that is off by more is not valid
FEWEST_SAMPLES = 20
PASSES_FOR_A_SAMPLE = 62  # that the first methods need; more samples are tried where there are passes for them
PASSES_OF_SHORT_SEARCH = SHORT_PASSES + 2  # some are left for the other methods
MOST_SHORTLY = 500  # samples: a share of them is known to 2 points
KNOWN = 500  # samples of each split that others are moved towards
KEPT = 10  # examples of each budget that are stored
ERROR = 0.05  # chance that a lower bound of the witness is too high, at most
_ROUNDING = 1e-5  # of the largest logit: an example of a certified sample needs a larger margin


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a run at one budget of N samples: which survived its attacks and which are certified, (N,) bool.

    attacked: number of samples in the draws of the attacks. names: the assessments that make the claim. headline: whether the gate
    and the headline read it: the run's own budget, or one that an attack was given as its epsilon. Attacks that minimise the
    distance alone report distances there.
    """

    region: PerturbationBall
    survived: Tensor
    certified: Tensor
    attacked: int
    names: tuple[str, ...]
    headline: bool

    @property
    def words(self) -> str:
        """The budget, for example `Linf 8/255`."""
        return place_text(self.region.norm, self.region.epsilon)


@dataclass(frozen=True, slots=True)
class Testimony:
    """Result of the witness for one claim: `indices` int64 (n,) of the samples that it tried, and its search of them.

    in_full: how many of them, at the front, every method was tried on. bounds: number of bounds that were planned, 2 where
    the first method may be tried on more samples; they share the error of 5 %.
    """

    claim: Claim
    indices: Tensor
    result: WitnessResult
    in_full: int
    bounds: int

    @property
    def certified(self) -> Tensor:
        """Return bool (n,): the certified samples."""
        return self.claim.certified[self.indices]

    @property
    def missed(self) -> Tensor:
        """Return bool (n,): the samples that survived the run's attacks but not the witness."""
        return self.result.broken & ~self.certified

    @property
    def tried(self) -> int:
        """Number of surviving samples that it tried."""
        return int((~self.certified).sum())

    @property
    def share(self) -> float:
        """Estimate of the share of the attacked samples that survived and can be broken."""
        survived, tried = int(self.claim.survived.sum()), int((~self.certified)[: self.in_full].sum())
        return int(self.missed[: self.in_full].sum()) / tried * survived / self.claim.attacked if tried else 0.0

    @property
    def lower_bound(self) -> float:
        """Lower 95 % bound of `share`; the share itself where every survivor was tried.

        The larger of two bounds: of the samples that every method was tried on, and of all that the first was.
        """
        if not self.tried:
            return 0.0
        survivors, alpha = int(self.claim.survived.sum()), ERROR / self.bounds
        ends = {self.in_full, len(self.indices)}
        counts = [(int(self.missed[:end].sum()), int((~self.certified)[:end].sum())) for end in ends]
        return max(fewest_breakable(*count, survivors, alpha) for count in counts) / self.claim.attacked


def fewest_breakable(broken: int, tried: int, survivors: int, alpha: float = ERROR) -> int:
    """Lower bound, at confidence 1 - alpha, of how many of `survivors` can be broken, `broken` of `tried` drawn at random having been."""
    numbers = np.arange(broken, survivors - (tried - broken) + 1)
    likely = hypergeom.sf(broken - 1, survivors, numbers, tried) > alpha
    return int(numbers[likely.argmax()])


def claims_of(evidence: Evidence) -> list[Claim]:
    """Every budget at which the run claims that a sample is robust. Raises NotApplicable for none.

    The draw of a sweep counts at the run's own budget, of which the headline and the gate speak; elsewhere it is one algorithm's curve.
    """
    all_artifacts = [p.artifacts for p in evidence.assessments]
    attacks = [p for p in evidence.assessments if p.family != "sweeps"]
    global_region = PerturbationBall(evidence.params.budget.norm, evidence.params.budget.epsilon)
    minimum_norm = {p.name for p in evidence.assessments if p.minimum_norm}
    balls = {global_region, *(p.region for p in attacks if p.region is not None and p.region.epsilon > 0)}
    claims = []
    for region in sorted(balls, key=lambda r: (r.norm, r.epsilon)):
        at_region = region_evidence(region, evidence.clean, all_artifacts)
        drawn_by = (
            at_region
            if region == global_region
            else region_evidence(region, evidence.clean, [p.artifacts for p in attacks])
        )
        certified = at_region.states == SampleState.CERTIFIED.code
        survived = (at_region.states == SampleState.SURVIVED.code) & drawn_by.drawn
        if (survived | certified).any():
            drawing = [draw.name for draw in drawn_by.draws]
            proving = [all_artifacts[i].name for i in at_region.certified_by[certified].unique().tolist()]
            headline = region == global_region or bool(set(drawing) - minimum_norm)
            names, attacked = tuple(dict.fromkeys(drawing + proving)), int(drawn_by.drawn.sum())
            claims.append(Claim(region, survived, certified, attacked, names, headline))
    if not claims:
        raise NotApplicable("no budget at which a sample survived an attack or is certified")
    return claims


def attack_passes(evidence: Evidence) -> float:
    """Return the number of passes of all attacks of the run; 0 for none."""
    keys = ("queries", "forward_passes", "backward_passes")
    attacks = [a for a in evidence.assessments if a.family in ("attacks", "queries")]
    return sum(float(a.tensor(key).double().nan_to_num().sum()) for a in attacks for key in keys if a.has(key))


def passes_allowed(evidence: Evidence) -> int:
    """Return the number of passes the witness may make: a fifth of those of the run's attacks, or 20 x 200 where that is more.

    Half of `sanity.queries` bounds those of a Python function; the other checks ask the other half.
    """
    allowed = witness_passes(attack_passes(evidence))
    module = evidence.classifier.module
    if isinstance(module, PredictFunction):
        share = witness_queries(evidence.params.sanity)
        module.allowed = module.queries_asked + share  # what the checks before left of theirs is not added
        allowed = min(allowed, share)
    return allowed


def testimonies(evidence: Evidence) -> list[Testimony]:
    """Search every budget once; the result is kept for the stage, which stores the examples."""
    return evidence.once("witness", lambda: _testimonies(evidence))


def _testimonies(evidence: Evidence) -> list[Testimony]:
    claims = claims_of(evidence)
    seed, classifier = evidence.subject.seed, evidence.classifier
    with seeded(derive_seed(seed, "witness")):
        random_model = is_random(evidence)
        passes_left, known_samples, student = passes_allowed(evidence), _known(evidence), _surrogate(evidence)
        gradients, inner = Capability.AUTOGRAD in classifier.capabilities, None
        if gradients:
            inner = inner_classifier(classifier, evidence.data.inputs, evidence.data.targets)
            passes_left -= INNER_PASSES if inner else 0
        testimonies_found = []
        for number, claim in enumerate(claims):
            share, epsilon = passes_left // (len(claims) - number), claim.region.epsilon
            in_full = max(FEWEST_SAMPLES, share // PASSES_FOR_A_SAMPLE)
            is_wide = gradients and not random_model and not claim.region.transformation
            shortly = min(share // PASSES_OF_SHORT_SEARCH, MOST_SHORTLY) if is_wide else 0
            indices, in_full = _drawn(claim, in_full, shortly, seed)
            bounds = 1 if len(indices) == in_full else 2
            inputs, labels = evidence.data.inputs[indices], evidence.data.targets[indices]
            seeds = [derive_seed(seed, "witness", claim.words, name) for name in evidence.named(indices)]
            if transformation := claim.region.transformation:
                result = search_parameters(classifier, transformation, epsilon, inputs, labels, seeds, share)
            else:
                ball = Ball(claim.region.norm, epsilon, *evidence.data.value_range)
                target = Target(classifier, ball, gradients, random_model, student, inner, *known_samples)
                result = search(target, inputs, labels, seeds, share, in_full)
                reached = result.passes > 0
                in_full = int(reached[:in_full].sum())
                indices, result = indices[: len(reached)][reached], result.at(reached)
            passes_left -= int(result.passes.sum())
            testimonies_found.append(Testimony(claim, indices, result, in_full, bounds))
    return testimonies_found


def _drawn(claim: Claim, in_full: int, more: int, seed: int) -> tuple[Tensor, int]:
    """Draw samples at random, about `in_full` at the front and `more` in all; int64 (n,), and how many are the front.

    The front and the rest each take survivors and certified samples in proportion, the front at least one of each.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "witness", claim.words))
    pools = [mask.nonzero().flatten() for mask in (claim.survived, claim.certified)]
    total = sum(map(len, pools))
    orders = [pool[torch.randperm(len(pool), generator=generator)] for pool in pools]
    ends = [[max(1, round(n * len(pool) / total)) for pool in pools] for n in (in_full, max(in_full, more))]
    parts = [
        torch.cat([order[start:end] for order, start, end in zip(orders, *limits, strict=True)])
        for limits in ([[0, 0], ends[0]], ends)
    ]
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in parts]), len(parts[0])


def _known(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return samples with the class that the model gives them, or their label where it was not asked: (m, ...), int64 (m,)."""
    known_inputs, known_classes = [evidence.data.inputs[:KNOWN]], [evidence.subject.clean_predictions[:KNOWN]]
    if evidence.train is not None:
        known_inputs.append(evidence.train.inputs[:KNOWN])
        known_classes.append(evidence.train.targets[:KNOWN])
    return torch.cat(known_inputs), torch.cat(known_classes)


def _surrogate(evidence: Evidence) -> Classifier:
    """Return the model at `sanity.surrogate`, else a student of the model under assessment. Raises NotRun where the former is not there."""
    data, device, named = evidence.data, evidence.classifier.device, evidence.params.sanity.surrogate
    if named is None:
        return train_student(*_known(evidence), data, device, evidence.subject.seed, largest_linf(evidence))
    try:
        return named_classifier("sanity.surrogate", named, data, str(device), evidence.params.tracking.uri)
    except UserError as error:
        raise NotRun(str(error)) from error


@our_check(CHECK)
def witness_finds_nothing(evidence: Evidence, limit: float) -> CheckResult:
    """A short attack that shares no code with the run's must not break what these left, whoever wrote them and under whichever norm.

    A transformation's parameters are searched on a grid and at random.
    At every other budget a random part of the samples that survived, and of those that are certified, is attacked: with gradients of the
    margin and of cross entropy where the model has any, by random search, towards the nearest samples of other classes, with examples
    made on a surrogate (`sanity.surrogate`, or a small student of the model), and with gradients of the network inside the model, past
    a purifier, a detector or rounding around it. Where the first of these breaks some samples, it is tried on more. It makes at most a
    fifth of the passes of the run's attacks, or 20 x 200 where that is more; `sanity.queries` bounds what a Python function is asked.
    WARN where the lower 95 % bound of (share of the tried samples that it broke x share that survived) is above the threshold, HARD
    above 10 points, and HARD for any certified sample that it breaks. Where only attacks that minimise the distance worked at a budget
    other than the run's own it is WARN: they report distances. The examples
    are stored: robustness_data.pt of the checks, key `witness`.
    """
    witnessed = testimonies(evidence)
    false = [_false_certificates(evidence, testimony) for testimony in witnessed]
    bad = [
        (testimony, wrong)
        for testimony, wrong in zip(witnessed, false, strict=True)
        if wrong.any() or testimony.lower_bound > limit
    ]
    worst = max(witnessed, key=lambda testimony: testimony.lower_bound)
    hard = any(wrong.any() for wrong in false) or any(t.lower_bound > NOT_VALID and t.claim.headline for t in witnessed)
    passes, tried = sum(int(t.result.passes.sum()) for t in witnessed), sum(len(t.indices) for t in witnessed)
    reasons = {testimony.claim.words: _words(evidence, testimony, wrong) for testimony, wrong in bad}
    each = {name: reasons[testimony.claim.words] for testimony, _ in bad for name in testimony.claim.names}
    flagged = torch.zeros(len(evidence.ids), dtype=torch.bool)
    for testimony, wrong in bad:
        flagged[testimony.indices[testimony.missed | wrong]] = True
    samples, reason = evidence.named(flagged), "; ".join(reasons.values())
    note = f"{passes} passes on {tried} samples at {', '.join(testimony.claim.words for testimony in witnessed)}"
    severity = Severity.HARD if hard else Severity.WARN
    return CheckResult(bool(bad), worst.share, tried, samples, list(each), reason, note, severity, each)


def _false_certificates(evidence: Evidence, testimony: Testimony) -> Tensor:
    """Return True for certified samples that are broken by more than rounding; bool (n,)."""
    scale = evidence.subject.clean_logits[testimony.indices].abs().amax(1)
    return testimony.result.broken & testimony.certified & (testimony.result.margins > _ROUNDING * scale)


def _words(evidence: Evidence, testimony: Testimony, wrong: Tensor) -> str:
    """Describe the broken samples at one budget, with an example."""
    parts, claim = [], testimony.claim
    if wrong.any():
        certified, example = int(testimony.certified.sum()), _example(evidence, testimony, wrong)
        parts.append(f"broke {int(wrong.sum())} of {certified} certified samples at {claim.words} ({example})")
    if testimony.missed.any():
        missed, survived = int(testimony.missed.sum()), int(claim.survived.sum())
        parts.append(
            f"broke {missed} of {testimony.tried} samples that {', '.join(claim.names)} left at {claim.words} "
            f"({_example(evidence, testimony, testimony.missed)}; {survived} of {claim.attacked} survived, so robust accuracy "
            f"there is too high by at least {testimony.lower_bound:.1%})"
        )
    return "; ".join(parts)


def _example(evidence: Evidence, testimony: Testimony, mask: Tensor) -> str:
    first = int(mask.nonzero()[0])
    return f"for example {evidence.ids[int(testimony.indices[first])]}, by {testimony.result.methods[first]}"


def stored_examples(evidence: Evidence) -> Tensors:
    """Return the witness's examples for robustness_data.pt, KEPT of each budget: under `witness`, one row per example.

    inputs (M, ...), samples int64 (M,) place among the N samples, predictions int64 (M,), epsilons float32 (M,), norms int64 (M,) place
    among Linf, L2, L1, L0, -1 for a transformation, certified bool (M,).
    """
    witnessed: Sequence[Testimony] = evidence.notes.get("witness", ())
    rows = [(testimony, testimony.result.broken.nonzero().flatten()[:KEPT]) for testimony in witnessed]
    if not any(len(stored) for _, stored in rows):
        return {}
    codes = {norm: code for code, norm in enumerate(DISTANCE)}
    regions = [testimony.claim.region for testimony, stored in rows for _ in stored]
    return {
        "witness": {
            "inputs": torch.cat([testimony.result.examples[stored] for testimony, stored in rows]),
            "samples": torch.cat([testimony.indices[stored] for testimony, stored in rows]),
            "predictions": torch.cat([testimony.result.predictions[stored] for testimony, stored in rows]),
            "epsilons": torch.tensor([region.epsilon for region in regions]),
            "norms": torch.tensor([codes.get(region.norm, -1) for region in regions]),
            "certified": torch.cat([testimony.certified[stored] for testimony, stored in rows]),
        }
    }
