"""Group A, pre-flight: do model and inputs meet the assumptions of an evaluation?"""

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from windtunnel.boundary.models.backends import Program
from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Capability, Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.scratch import by_samples, finite_samples, sample_parts
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import binomial_interval, median
from windtunnel.core.transformations import KINDS
from windtunnel.evaluation.sanity import CONTROL_LIBRARY
from windtunnel.evaluation.sanity.check import CheckResult, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import GREY_LEVELS, Evidence, NotApplicable
from windtunnel.evaluation.sanity.probes import input_gradients, need_gradients, onnx_logits, several_passes
from windtunnel.evaluation.summary.evidence import PerturbationBall
from windtunnel.registry.plugins import library_of

BATCH = 64
DRAWS = 5
RANDOMNESS = 1e-4  # of L2-normalised logits; AutoAttack's check_randomized
# Smallest and largest epsilon in use: RobustBench; AutoAttack (Croce, Hein 2020); MSD (Maini et al. 2020); APGD in L1 (Croce, Hein
# 2021); VNN-COMP. Of images of VALUES values; L2 grows with the root of their number, L1 with the number.
USUAL = {
    "grey": {Norm.LINF: (0.03, 0.4), Norm.L2: (1.0, 3.0), Norm.L1: (8.0, 40.0)},
    "small colour": {Norm.LINF: (1 / 255, 16 / 255), Norm.L2: (0.25, 2.0), Norm.L1: (8.0, 24.0)},
    "large colour": {Norm.LINF: (0.5 / 255, 16 / 255), Norm.L2: (0.5, 5.0), Norm.L1: (60.0, 255.0)},
}
VALUES = {"grey": 28 * 28, "small colour": 3 * 32 * 32, "large colour": 3 * 224 * 224}
LARGE_SIDE = 128  # pixels
FAR = 4
FEWEST_RIGHT = 50  # samples; 100 % of no more is common
STEEP = 6  # margins near zero, of which half would be negative were the samples not selected: a chance of 2 %


@our_check("A1")
def evaluation_mode(evidence: Evidence, limit: float) -> CheckResult:
    """A module in training mode drops units at random or normalises by the batch: another model than the one deployed.

    Flags when any submodule has `.training` set, or an operation of a torch.export program was exported as in training.
    """
    module = evidence.subject.classifier.module
    training = [name or type(part).__name__ for name, part in module.named_modules() if part.training]
    if isinstance(module, Program):
        training += module.training_operations()
    return CheckResult(bool(training), len(training), reason=f"in training mode: {', '.join(training[:5])}")


@our_check("A2", threshold=RANDOMNESS)
def deterministic_forward(evidence: Evidence, limit: float) -> CheckResult:
    """Randomness at inference hides gradients: an attack follows one draw and is evaluated by another.

    Five passes over one batch; flags when the number of correct predictions differs, or L2-normalised logits differ by
    more than the threshold.
    """
    value, counts = randomness(evidence)
    flagged = value > limit or len(set(counts)) > 1
    return CheckResult(flagged, value, n=BATCH, reason=f"correct in five passes: {', '.join(map(str, counts))}")


def randomness(evidence: Evidence) -> tuple[float, list[int]]:
    """(largest difference of normalised logits, number correct in each pass) over five passes of one batch."""

    def compute() -> tuple[float, list[int]]:
        data = evidence.subject.dataset
        x, y = data.inputs[:BATCH], data.targets[:BATCH]
        passes = several_passes(evidence.subject.classifier, x, DRAWS)
        unit = [nn.functional.normalize(p, dim=1) for p in passes]
        return max(float((u - unit[0]).abs().max()) for u in unit), [
            int(evidence.subject.classifier.criterion.is_correct(p, y).sum()) for p in passes
        ]

    return evidence.once("randomness", compute)


def is_random(evidence: Evidence) -> bool:
    """Return True if A2 flags at its default threshold."""
    value, counts = randomness(evidence)
    return value > RANDOMNESS or len(set(counts)) > 1


@our_check("A3")
def batch_invariance(evidence: Evidence, limit: float) -> CheckResult:
    """A model that normalises by the batch gives a sample another class in other company; attacks then attack the batch.

    64 samples one at a time against all at once: HARD where an argmax differs by more than rounding, WARN where logits
    differ by more than the threshold. A model with randomness of its own is A2's business.
    """
    if is_random(evidence):
        raise NotApplicable("the forward pass is random (A2), so that batches cannot be compared")
    x = evidence.subject.dataset.inputs[:BATCH]
    alone, together = evidence.subject.classifier.logits(x, 1), evidence.subject.classifier.logits(x, len(x))
    apart = (alone - together).abs().amax(1)
    criterion, labels = evidence.subject.classifier.criterion, evidence.subject.dataset.targets[:BATCH]
    scale = together.abs().amax().clamp(min=1)
    differ = (criterion.predict(alone, labels) != criterion.predict(together, labels)) & (apart > 1e-5 * scale)
    worst = float(apart.max() / scale)
    ids = [evidence.ids[i] for i in differ.nonzero().flatten().tolist()]
    severity = Severity.HARD if differ.any() else Severity.WARN
    reason = f"{len(ids)} predictions change with the batch size"
    return CheckResult(
        bool(differ.any()) or worst > limit, worst, n=len(x), samples=ids, reason=reason, severity=severity
    )


@our_check("A4")
def logits_not_probabilities(evidence: Evidence, limit: float) -> CheckResult:
    """A second softmax, in the loss, squeezes the gradient.

    Flags when all outputs lie in [0, 1] and every row sums to 1, within the threshold.
    """
    logits = evidence.subject.clean_logits
    off = float((logits.sum(1) - 1).abs().max())
    flagged = bool(logits.min() > -limit and logits.max() < 1 + limit and off <= limit)
    return CheckResult(flagged, off, n=len(logits), reason="every row of outputs sums to 1")


@our_check("A5")
def inputs_in_range(evidence: Evidence, limit: float) -> CheckResult:
    """Attacks clip to [0, 1] and measure budgets there: normalised inputs are cut to another image, under another budget.

    The largest distance of an input value from [0, 1]; not applicable to tabular data, which has a range of its own.
    """
    data = evidence.subject.dataset
    if not data.is_image:
        raise NotApplicable("tabular data has a range of its own")
    outside = by_samples(lambda x: (x - x.clamp(0, 1)).flatten(1).abs().amax(1), data.inputs)
    bad = (outside > limit) | ~finite_samples(data.inputs)
    value = float(outside.nan_to_num(torch.inf).max())
    reason = f"values from {float(data.inputs.min()):.4g} to {float(data.inputs.max()):.4g}"
    return CheckResult(bool(bad.any()), value, n=len(data), samples=evidence.named(bad), reason=reason)


@our_check("A6")
def epsilon_in_pixel_units(evidence: Evidence, limit: float) -> CheckResult:
    """An epsilon in 0..255, in units of the standard deviation, or rounded (0.031 for 8/255) is another budget.

    HARD for a Linf epsilon above 1. WARN where the images have 8 bits and an epsilon is within 0.1 of a whole number
    of grey levels and further than the threshold from it, or where no Linf attack moved any pixel by 0.9 epsilon. WARN where
    the epsilon of an attack on images is more than four times smaller or larger than those the field uses for the norm (Linf,
    L2, L1) and the size: an L2 epsilon of 0.2 on 28x28 pixels moves nothing that one could see, and no model. WARN where the range of a
    transformation is so small that it is likely in another unit: a rotation of 0.17 degrees is 10 degrees in radians.
    """
    every_ball = [(p, p.region) for p in evidence.assessments if p.region is not None]
    balls = [(p.name, ball) for p, ball in every_ball if ball.norm is Norm.LINF]
    compared = {
        p.name: _unusual(ball, evidence.subject.dataset) for p, ball in every_ball if p.family in ("attacks", "queries")
    }
    unusual = {name: difference for name, difference in compared.items() if difference}
    large = [name for name, ball in balls if ball.epsilon > 1]
    if large:
        worst = max(ball.epsilon for _, ball in balls)
        return CheckResult(
            flagged=True,
            value=worst,
            assessments=large,
            reason="Linf epsilon above 1: in 0..255?",
            severity=Severity.HARD,
        )
    if unusual:
        worst = max(ball.epsilon for p, ball in every_ball if p.name in unusual)
        n = len(every_ball)
        return listing(list(unusual), f"{'; '.join(dict.fromkeys(unusual.values()))}:", value=worst, n=n, each=unusual)
    if not balls:
        raise NotApplicable("no assessment works in Linf")
    rounded = [
        name
        for name, ball in balls
        if evidence.eight_bit and limit < abs(ball.epsilon * GREY_LEVELS - round(ball.epsilon * GREY_LEVELS)) < 0.1
    ]
    if rounded:
        return CheckResult(
            flagged=True, assessments=rounded, reason="an epsilon is nearly, but not, a whole number of grey levels"
        )
    ratios = {}
    for assessment in evidence.assessments:
        ball = assessment.region
        if (
            assessment.family == "attacks"
            and ball is not None
            and ball.norm is Norm.LINF
            and not assessment.minimum_norm
            and assessment.tried.any()
        ):
            shown = assessment.tried if assessment.shows_failures else assessment.tried & assessment.succeeded
            if not shown.any():
                continue  # it broke nothing, and returns the clean input of what it did not break
            distances = assessment.distance(Norm.LINF)[shown]
            ratios[assessment.name] = float(distances.max()) / ball.epsilon
    if not ratios:
        return CheckResult(flagged=False, note="no attack used its whole budget by design")
    best = max(ratios.values())
    reason = f"the largest change is {best:.3g} epsilon: were the images rescaled on the way?"
    return CheckResult(best < 0.9, best, assessments=list(ratios) if best < 0.9 else (), reason=reason)


def _unusual(ball: PerturbationBall, dataset: Dataset) -> str:
    """Return in words how an epsilon differs from those in use for images of this size; empty where it does not."""
    if not dataset.is_image:
        return ""
    channels, height, width = dataset.inputs.shape[1:]
    kind = "grey" if channels == 1 else "small colour" if min(height, width) < LARGE_SIDE else "large colour"
    if transformation := ball.transformation:
        strange = [
            f"{name} {size * ball.epsilon:g}{KINDS[name].unit}, while {KINDS[name].least_usual:g} or more is usual"
            for name, size in transformation.ranges
            if size * ball.epsilon < KINDS[name].least_usual
        ]
        return "; ".join(strange) + (": in radians, or as a share?" if strange else "")
    if ball.norm not in USUAL[kind]:
        return ""
    smallest, largest = USUAL[kind][ball.norm]
    values = channels * height * width / VALUES[kind]
    scale = {Norm.LINF: 1.0, Norm.L2: values**0.5, Norm.L1: values}[ball.norm]
    low, high = smallest * scale, largest * scale
    if low / FAR <= ball.epsilon <= high * FAR:
        return ""
    size = f"{channels}x{height}x{width}"
    return f"{ball.norm} {ball.epsilon:.3g}, while {low:.2g} to {high:.2g} is usual for {kind} images of {size}"


@our_check("A7")
def clean_predictions_equal(evidence: Evidence, limit: float) -> CheckResult:
    """Accuracies of two stages can only be compared if both saw the same model do the same on clean inputs.

    Every assessment's clean predictions against those of the clean assessment, sample by sample.
    """
    wrong = {
        p.name: int((p.tensor("clean_predictions") != evidence.subject.clean_predictions[p.indices]).sum())
        for p in evidence.assessments
    }
    bad = [name for name, count in wrong.items() if count]
    return listing(bad, "differ in", value=sum(wrong.values()), n=len(wrong))


@our_check("A8")
def clean_accuracy_as_registered(evidence: Evidence, limit: float) -> CheckResult:
    """A model that is less accurate here than where it was published is fed something else than it was trained on.

    Flags when `sanity.expected_clean_accuracy` is outside the 95 % Wilson interval of the clean accuracy.
    """
    expected = evidence.params.sanity.expected_clean_accuracy
    if expected is None:
        raise NotApplicable("sanity.expected_clean_accuracy is not given")
    right, n = int(evidence.subject.clean_correct.sum()), len(evidence.ids)
    low, high = binomial_interval(right, n)
    reason = f"{right / n:.1%} [{low:.1%}, {high:.1%}] instead of {expected:.1%}"
    return CheckResult(not low <= expected <= high, right / n, n=n, reason=reason)


@our_check("A9")
def same_samples(evidence: Evidence, limit: float) -> CheckResult:
    """Ids, inputs and labels of every assessment against those of the clean one, bit by bit.

    An assessment of other samples is left out of every other check.
    """
    reason = "; ".join(f"{name}: {why}" for name, why in evidence.foreign.items())
    n = len(evidence.families)
    assessments = list(evidence.foreign)
    return CheckResult(bool(evidence.foreign), len(evidence.foreign), n=n, assessments=assessments, reason=reason)


@our_check("A10")
def true_labels(evidence: Evidence, limit: float) -> CheckResult:
    """Without labels the model's own predictions are the reference, and clean accuracy is 100 % by construction.

    An accuracy of exactly 100 % on more than 50 samples looks as if the model had labelled them, or as if those that it gets
    right had been selected. An INFO, since a good model reaches it too. A WARN where at least six margins are below a quarter
    of the median margin and none is negative: a distribution that ends at zero was cut there.
    """
    if not evidence.subject.dataset.labelled:
        return CheckResult(flagged=True, value=1.0, reason="the model's predictions stand in for labels")
    right, n = int(evidence.subject.clean_correct.sum()), len(evidence.ids)
    if right < n or n <= FEWEST_RIGHT:
        return CheckResult(flagged=False, value=0.0, n=n)
    margins = evidence.subject.classifier.criterion.margin(
        evidence.subject.clean_logits, evidence.subject.dataset.targets
    )
    narrow = margins < (median(margins.tolist()) or 0.0) / 4
    reason = (
        f"all {n} samples are classified as labelled, as if they were selected by correctness or labelled by the model"
    )
    if int(narrow.sum()) < STEEP:
        return CheckResult(flagged=True, value=1.0, n=n, reason=reason, severity=Severity.INFO)
    reason += f"; {int(narrow.sum())} margins are below a quarter of the median margin, and none is negative"
    return CheckResult(flagged=True, value=1.0, n=n, samples=evidence.named(narrow), reason=reason)


@our_check("A11")
def class_count_fits(evidence: Evidence, limit: float) -> CheckResult:
    """Some losses divide by a third or fourth logit, and some libraries assume ten classes unless told.

    Flags an attack whose loss needs more classes than there are, or that was told another number than there is.
    """
    k = evidence.subject.classifier.criterion.competing_classes(evidence.subject.dataset.num_classes)
    wrong = []
    for assessment in evidence.of("attacks"):
        needed = assessment.row.min_classes if assessment.row else 2
        class_counts = [call["n_classes"] for call in assessment.calls if isinstance(call.get("n_classes"), int)]
        if needed > k or any(count != k for count in class_counts):
            wrong.append(assessment.name)
    return CheckResult(
        bool(wrong), len(wrong), n=k, assessments=wrong, reason=f"{', '.join(wrong)} assume another number than {k}"
    )


@our_check("A12")
def no_optimisation_at_inference(evidence: Evidence, limit: float) -> CheckResult:
    """A defence that runs gradient steps in its forward pass cannot be attacked as if it were a function.

    Counts the calls of autograd during one forward pass. A profiler would see them too, but CPython 3.11 never returns from one
    set in a process where torch.export has been.
    """
    calls, make_grads = 0, torch.autograd._make_grads

    def counted(*arguments: Any, **options: Any) -> object:
        nonlocal calls
        calls += 1
        return make_grads(*arguments, **options)

    classifier = evidence.subject.classifier
    # Both torch.autograd.grad and backward go through it.
    with mock.patch.object(torch.autograd, "_make_grads", counted), torch.enable_grad():
        classifier.module(evidence.subject.dataset.inputs[:2].to(classifier.device))
    return CheckResult(calls > 0, calls, reason=f"{calls} calls of autograd in one forward pass")


@our_check("A13")
def differentiable(evidence: Evidence, limit: float) -> CheckResult:
    """A white-box attack needs a differentiable graph from input to output.

    Flags when the gradient of the loss by the input is unavailable.
    """
    need_gradients(evidence)
    data = evidence.subject.dataset
    try:
        input_gradients(
            evidence.subject.classifier, data.inputs[:2], data.targets[:2], evidence.subject.classifier.criterion.loss
        )
    except RuntimeError as error:
        return CheckResult(flagged=True, value=1, reason=" ".join(str(error).split())[:200])
    return CheckResult(flagged=False, value=0)


@our_check("A14", threshold=0.4 / GREY_LEVELS)
def no_hidden_quantisation(evidence: Evidence, limit: float) -> CheckResult:
    """A model that rounds its inputs is flat almost everywhere: small steps do nothing, and gradients are zero.

    Flags when noise of +-0.4/255 leaves the logits of every sample exactly as they were.
    """
    if is_random(evidence):
        raise NotApplicable("the forward pass is random (A2)")
    data, classifier = evidence.subject.dataset, evidence.subject.classifier

    def compute() -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(0, "A14"))
        moved = scratch.empty(data.inputs.shape)
        for part in sample_parts(moved):
            signs = torch.randint(0, 2, moved[part].shape, generator=generator) * 2 - 1
            moved[part] = data.inputs[part] + signs * limit
        return (classifier.logits(moved) == classifier.logits(data.inputs)).all(1)

    same = evidence.once(f"unmoved by {limit}", compute)  # D12 asks too
    return CheckResult(bool(same.all()), float(same.double().mean()), n=len(data), reason="no logit moved")


@our_check("A15")
def onnx_equals_torch(evidence: Evidence, limit: float) -> CheckResult:
    """A verdict on the exported graph holds for the model only if both are the same function.

    The largest difference of logits on the assessed samples, relative to the largest logit (at least 1).
    """
    if not any(p.asked_exported_graph for p in evidence.verifications):
        raise NotApplicable("no verifier worked on an ONNX graph")
    if Capability.ONNX_GRAPH not in evidence.subject.classifier.capabilities:
        raise NotApplicable("the model has no ONNX graph")
    onnx_outputs = onnx_logits(evidence, evidence.subject.dataset.inputs)
    apart = (onnx_outputs - evidence.subject.clean_logits).abs().amax(
        1
    ) / evidence.subject.clean_logits.abs().amax().clamp(min=1)
    value = float(apart.max())
    return CheckResult(value > limit, value, n=len(apart), samples=evidence.named(apart > limit))


@our_check("A16")
def positive_control(evidence: Evidence, limit: float) -> CheckResult:
    """An attack that cannot break an undefended model says nothing about a defended one.

    The run's strongest kind of attack, PGD in Linf, against controls trained here on images made of random prototypes, of the
    shape and the range of the run's own: a small undefended network at an epsilon that reaches the other prototypes (robust
    accuracy must not exceed the threshold), and a linear classifier whose exact robust accuracy is known
    (margin / ||w_i - w_j||_1): the attack must not break more than can be broken, nor much less.
    """
    from windtunnel.evaluation.sanity.control import attack_controls, controls_attacked

    if not library_of(CONTROL_LIBRARY, "attacks").is_installed:
        raise NotApplicable(f"{CONTROL_LIBRARY}, which attacks the controls, is not installed")
    if not evidence.subject.dataset.is_image:
        raise NotApplicable("attacks work on images, the data is tabular")

    n = controls_attacked(evidence.subject.dataset, evidence.params.sanity.samples)
    undefended, exact, linear = attack_controls(evidence.subject.dataset, n)
    wrong = undefended > limit or linear < exact - 1e-9 or linear > exact + 0.02
    note = f"undefended {undefended:.1%}; linear {linear:.1%}, exactly {exact:.1%}"
    return CheckResult(wrong, undefended, n=n, note=note)


@our_check("A17")
def threat_model_declared(evidence: Evidence, limit: float) -> CheckResult:
    """A number without norm, size, objective and the adversary's knowledge is no claim.

    Flags an assessment whose metadata lack the perturbation region, the data or the choice of samples; without threat model
    and objective they are not read at all.
    """
    lacking = []
    for assessment in evidence.assessments:
        means, region = assessment.semantics, assessment.semantics.perturbation
        is_declared = region.corruption_name or region.norm or assessment.kind is AssessmentKind.STATISTICAL_SAMPLING
        if not (means.input_metadata and means.sample_selection and is_declared):
            lacking.append(assessment.name)
    return listing(lacking, "lacking in", value=len(lacking), n=len(evidence.assessments))
