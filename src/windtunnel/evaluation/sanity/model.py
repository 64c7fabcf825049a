"""Group A, pre-flight: do model and inputs meet the assumptions of an evaluation?"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from windtunnel.assessments.verification.cascade.step import asks_exported_graph
from windtunnel.boundary.models.backends import PredictFunction, Program
from windtunnel.core import scratch
from windtunnel.core.contracts import AssessmentKind, Capability, Norm
from windtunnel.core.criterion import SOFTMAX
from windtunnel.core.dataset import Dataset, select
from windtunnel.core.scratch import by_samples, finite_samples, sample_parts
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import binomial_interval, median
from windtunnel.core.transformations import KINDS
from windtunnel.evaluation.input_conventions.corrections import MEASURED, suspicion
from windtunnel.evaluation.sanity import CONTROL_LIBRARY, probes
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, listing, our_check, total
from windtunnel.evaluation.sanity.evidence import GREY_LEVELS, Evidence
from windtunnel.records.metadata import Value
from windtunnel.records.regions import PerturbationBall
from windtunnel.records.tables import table
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
TINY_MOVE = 1e-6  # far above what float32 resolves near 1 (6e-8), far below what any sensor does
JUMP = 0.01  # of the median margin
_ORDERED = 1000  # samples whose predictions are compared under other orders of the classes
_ERRORS = 8  # of MEASURED samples: fewer are no evidence of other inputs, however many a correction mends
STEEP = 6  # margins near zero, of which half would be negative were the samples not selected: a chance of 2 %


@our_check("A1")
def evaluation_mode(evidence: Evidence, limit: float) -> CheckResult:
    """A module in training mode drops units at random or normalises by the batch: another model than the one deployed.

    Flags when any submodule has `.training` set, or an operation of a torch.export program was exported as in training.
    """
    module = evidence.classifier.module
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
        x, y, classifier = evidence.data.inputs[:BATCH], evidence.data.targets[:BATCH], evidence.classifier
        passes = probes.several_passes(classifier, x, DRAWS)
        unit = [nn.functional.normalize(p, dim=1) for p in passes]
        counts = [int(classifier.criterion.is_correct(p, y).sum()) for p in passes]
        return max(float((u - unit[0]).abs().max()) for u in unit), counts

    return evidence.once("randomness", compute)


def is_random(evidence: Evidence) -> bool:
    """Return True if A2 flags at its default threshold."""
    value, counts = randomness(evidence)
    return value > RANDOMNESS or len(set(counts)) > 1


def need_deterministic(evidence: Evidence, so: str = "") -> None:
    """Raise NotApplicable where A2 finds randomness."""
    if is_random(evidence):
        raise NotApplicable(f"the forward pass is random (A2){so}")


@our_check("A3")
def batch_invariance(evidence: Evidence, limit: float) -> CheckResult:
    """A model that normalises by the batch gives a sample another class in other company; attacks then attack the batch.

    64 samples one at a time against all at once: HARD where an argmax differs by more than rounding, WARN where logits
    differ by more than the threshold. A model with randomness of its own is A2's business.
    """
    need_deterministic(evidence, ", so that batches cannot be compared")
    x, labels, classifier = evidence.data.inputs[:BATCH], evidence.data.targets[:BATCH], evidence.classifier
    alone, together = classifier.logits(x, 1), classifier.logits(x, len(x))
    apart = (alone - together).abs().amax(1)
    answers, in_company = (classifier.criterion.predict(logits, labels) for logits in (alone, together))
    scale = together.abs().amax().clamp(min=1)
    differ = (answers != in_company) & (apart > 1e-5 * scale)
    worst, flagged = float(apart.max() / scale), bool(differ.any())
    severity = Severity.HARD if flagged else Severity.WARN
    reason = f"{int(differ.sum())} predictions change with the batch size"
    samples = evidence.named(differ)
    return CheckResult(flagged or worst > limit, worst, len(x), samples, reason=reason, severity=severity)


@our_check("A4")
def logits_not_probabilities(evidence: Evidence, limit: float) -> CheckResult:
    """A second softmax, in the loss, squeezes the gradient.

    Flags when all outputs lie in [0, 1] and every row sums to 1, within the threshold. Sums of outputs that are multiples of 1/256,
    as of TFLite's quantised softmax, may be off by half of that for each class, and by 0.1 at most.
    """
    logits = evidence.subject.clean_logits
    is_rounded = torch.equal((logits * 256).round(), logits * 256) and not torch.equal(logits.round(), logits)
    of_sums = limit + (min(logits.shape[1] / 512, 0.1) if is_rounded else 0.0)
    off = float((logits.sum(1) - 1).abs().max())
    flagged = bool(logits.min() > -limit and logits.max() < 1 + limit and off <= of_sums)
    return CheckResult(flagged, off, n=len(logits), reason="every row of outputs sums to 1")


@our_check("A5")
def inputs_in_range(evidence: Evidence, limit: float) -> CheckResult:
    """Attacks clip to [0, 1] and measure budgets there: normalised inputs are cut to another image, under another budget.

    The largest distance of an input value from [0, 1]; not applicable to tabular data, which has a range of its own.
    """
    data = evidence.data
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
    attacks = [(p, ball) for p, ball in every_ball if p.family in ("attacks", "queries")]
    unusual = {p.name: why for p, ball in attacks if (why := _unusual(ball, evidence.data))}
    if large := [name for name, ball in balls if ball.epsilon > 1]:
        worst = max(ball.epsilon for _, ball in balls)
        reason = "Linf epsilon above 1: in 0..255?"
        return CheckResult(True, worst, assessments=large, reason=reason, severity=Severity.HARD)
    if unusual:
        worst = max(ball.epsilon for p, ball in every_ball if p.name in unusual)
        sentence = f"{'; '.join(dict.fromkeys(unusual.values()))}:"
        return replace(listing(list(unusual), sentence, value=worst, n=len(every_ball)), each=unusual)
    if not balls:
        raise NotApplicable("no assessment works in Linf")
    if evidence.eight_bit:
        off = {name: abs(ball.epsilon * GREY_LEVELS - round(ball.epsilon * GREY_LEVELS)) for name, ball in balls}
        if rounded := [name for name, difference in off.items() if limit < difference < 0.1]:
            reason = "an epsilon is nearly, but not, a whole number of grey levels"
            return CheckResult(True, assessments=rounded, reason=reason)
    ratios = {}
    for assessment, ball in attacks:
        if assessment.family != "attacks" or ball.norm is not Norm.LINF or assessment.minimum_norm:
            continue
        # One that returns the clean input of what it did not break shows nothing there.
        shown = assessment.tried if assessment.shows_failures else assessment.tried & assessment.succeeded
        if shown.any():
            ratios[assessment.name] = float(assessment.distance(Norm.LINF)[shown].max()) / ball.epsilon
    if not ratios:
        return CheckResult(flagged=False, note="no attack used its whole budget by design")
    best = max(ratios.values())
    reason = f"the largest change is {best:.3g} epsilon: were the images rescaled on the way?"
    return CheckResult(best < 0.9, best, assessments=list(ratios), reason=reason)


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


@our_check("A7", "differ in {names}", value=total)
def clean_predictions_equal(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Accuracies of two stages can only be compared if both saw the same model do the same on clean inputs.

    Every assessment's clean predictions against those of the clean assessment, sample by sample.
    """
    for assessment in evidence.assessments:
        differ = assessment.tensor("clean_predictions") != evidence.subject.clean_predictions[assessment.indices]
        yield CheckResult(bool(differ.any()), int(differ.sum()), assessments=[assessment.name])


@our_check("A8")
def clean_accuracy_as_registered(evidence: Evidence, limit: float) -> CheckResult:
    """A model that is less accurate here than where it was published is fed something else than it was trained on.

    Flags when `sanity.expected_clean_accuracy` is outside the 95 % Wilson interval of the clean accuracy. Where it is not given: a
    WARN where another order of the classes does better by more than chance (labels from 1, two classes swapped), or where many of
    50 samples are wrong and another convention of the inputs does (a normalisation, 0 to 255, black for white, rows for columns).
    The inputs are not tried in the profile `stored`, nor with a model of `source: function`.
    """
    expected = evidence.params.sanity.expected_clean_accuracy
    if expected is None:
        return _as_trained(evidence)
    right, n = int(evidence.subject.clean_correct.sum()), len(evidence.ids)
    low, high = binomial_interval(right, n)
    reason = f"{right / n:.1%} [{low:.1%}, {high:.1%}] instead of {expected:.1%}"
    return CheckResult(not low <= expected <= high, right / n, n=n, reason=reason)


def _as_trained(evidence: Evidence) -> CheckResult:
    """Return what looks as if the model had been trained with other classes or inputs, as `windtunnel check` does."""
    subject, classifier, data = evidence.subject, evidence.classifier, evidence.data
    if not data.labelled or classifier.criterion != SOFTMAX:
        raise NotApplicable("sanity.expected_clean_accuracy is not given")
    many, few = (select(len(data), n, "stratified", 0, data.targets) for n in (_ORDERED, MEASURED))
    suspected = suspicion(None, data.subset(many), subject.clean_logits[many])
    errors, is_asked = int((~subject.clean_correct[few]).sum()), evidence.params.sanity.profile != "stored"
    if not suspected and is_asked and not isinstance(classifier.module, PredictFunction) and errors >= _ERRORS:
        suspected = suspicion(classifier, data.subset(few), subject.clean_logits[few])
    accuracy, reason = float(subject.clean_correct.double().mean()), suspected.line if suspected else ""
    return CheckResult(bool(reason), accuracy, len(data), reason=reason, severity=Severity.WARN)


@our_check("A9")
def same_samples(evidence: Evidence, limit: float) -> CheckResult:
    """Ids, inputs and labels of every assessment against those of the clean one, bit by bit.

    An assessment of other samples is left out of every other check.
    """
    reason = "; ".join(f"{name}: {why}" for name, why in evidence.foreign.items())
    assessments = list(evidence.foreign)
    return CheckResult(bool(assessments), len(assessments), len(evidence.families), (), assessments, reason)


@our_check("A10")
def true_labels(evidence: Evidence, limit: float) -> CheckResult:
    """Without labels the model's own predictions are the reference, and clean accuracy is 100 % by construction.

    An accuracy of exactly 100 % on more than 50 samples looks as if the model had labelled them, or as if those that it gets
    right had been selected. An INFO, since a good model reaches it too. A WARN where at least six margins are below a quarter
    of the median margin and none is negative: a distribution that ends at zero was cut there.
    """
    if not evidence.data.labelled:
        return CheckResult(flagged=True, value=1.0, reason="the model's predictions stand in for labels")
    right, n = int(evidence.subject.clean_correct.sum()), len(evidence.ids)
    if right < n or n <= FEWEST_RIGHT:
        return CheckResult(flagged=False, value=0.0, n=n)
    margins = evidence.classifier.criterion.margin(evidence.subject.clean_logits, evidence.data.targets)
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
    k = evidence.classifier.criterion.competing_classes(evidence.data.num_classes)
    wrong = []
    for assessment in evidence.of("attacks"):
        needed = assessment.row.min_classes if assessment.row else 2
        class_counts = [call["n_classes"] for call in assessment.calls if isinstance(call.get("n_classes"), int)]
        if needed > k or any(count != k for count in class_counts):
            wrong.append(assessment.name)
    reason = f"{', '.join(wrong)} assume another number than {k}"
    return CheckResult(bool(wrong), len(wrong), k, assessments=wrong, reason=reason)


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

    classifier = evidence.classifier
    # Both torch.autograd.grad and backward go through it.
    with mock.patch.object(torch.autograd, "_make_grads", counted), torch.enable_grad():
        classifier.module(evidence.data.inputs[:2].to(classifier.device))
    return CheckResult(calls > 0, calls, reason=f"{calls} calls of autograd in one forward pass")


@our_check("A13")
def differentiable(evidence: Evidence, limit: float) -> CheckResult:
    """A white-box attack needs a differentiable graph from input to output.

    Flags when the gradient of the loss by the input is unavailable.
    """
    probes.need_gradients(evidence)
    data, classifier = evidence.data, evidence.classifier
    try:
        probes.input_gradients(classifier, data.inputs[:2], data.targets[:2], classifier.criterion.loss)
    except RuntimeError as error:
        return CheckResult(flagged=True, value=1, reason=" ".join(str(error).split())[:200])
    return CheckResult(flagged=False, value=0)


@our_check("A14", threshold=0.4 / GREY_LEVELS)
def no_hidden_quantisation(evidence: Evidence, limit: float) -> CheckResult:
    """A model that rounds its inputs is flat almost everywhere: small steps do nothing, and gradients are zero.

    Flags when noise of +-0.4/255 leaves the logits of every sample exactly as they were.
    """
    need_deterministic(evidence)
    data, classifier = evidence.data, evidence.classifier

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
    steps = [step for p in evidence.verifications for step in table(dict[str, Value], p.options, "tolerances")]
    if not any(map(asks_exported_graph, steps)):
        raise NotApplicable("no verifier worked on an ONNX graph")
    if Capability.ONNX_GRAPH not in evidence.classifier.capabilities:
        raise NotApplicable("the model has no ONNX graph")
    logits = evidence.subject.clean_logits
    difference = (probes.onnx_logits(evidence, evidence.data.inputs) - logits).abs().amax(1)
    apart = difference / logits.abs().amax().clamp(min=1)
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
    if not evidence.data.is_image:
        raise NotApplicable("attacks work on images, the data is tabular")

    n = controls_attacked(evidence.data, evidence.params.sanity.samples)
    undefended, exact, linear = attack_controls(evidence.data, n)
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
        is_sampled = assessment.artifacts.kind is AssessmentKind.STATISTICAL_SAMPLING
        is_declared = region.corruption_name or region.norm or is_sampled
        if not (means.input_metadata and means.sample_selection and is_declared):
            lacking.append(assessment.name)
    return listing(lacking, "lacking in", value=len(lacking), n=len(evidence.assessments))


@our_check("A23")
def no_memory(evidence: Evidence, limit: float) -> CheckResult:
    """A model that remembers queries gives an attack the answer to another question.

    Two copies of the model are asked about the same mirrored images, and about points near them, one in this order and
    one in the other. Any prediction that differs flags, as do logits that differ by more than rounding.
    """
    need_deterministic(evidence)
    module = evidence.classifier.module
    if isinstance(module, PredictFunction):
        raise NotApplicable("a Python function cannot be copied")
    try:
        copies = [copy.deepcopy(module) for _ in range(2)]
    except Exception as error:  # sessions and handles of other runtimes cannot be copied
        raise NotRun(f"the model cannot be copied ({type(error).__name__})") from error
    images = evidence.data.inputs[:BATCH].flip(-1)
    near = probes.uniform_in_ball(
        images, probes.largest_linf(evidence), torch.Generator().manual_seed(derive_seed(0, "A23"))
    )
    device = evidence.classifier.device
    with torch.no_grad():
        first = [copies[0](x.to(device)).float().cpu() for x in (images, near)]
        second = [copies[1](x.to(device)).float().cpu() for x in (near, images)][::-1]
    apart = torch.stack([(a - b).abs().amax(1) for a, b in zip(first, second, strict=True)]).amax(0)
    scale = float(torch.cat(first).abs().amax().clamp(min=1e-12))
    differ = apart > 1e-4 * scale
    reason = f"{int(differ.sum())} of {len(differ)} predictions depend on earlier queries"
    return CheckResult(bool(differ.any()), float(apart.max()) / scale, n=len(differ), reason=reason)


@our_check("A24")
def continuous(evidence: Evidence, limit: float) -> CheckResult:
    """A network is continuous; a hash of the input, a grid or a switch in the forward pass is not.

    The share of samples whose margin moves by more than 1 % of the median margin when every value changes by 1e-6, at
    the samples and at random points of the largest Linf ball around them.
    """
    need_deterministic(evidence)
    x, y, classifier = evidence.data.inputs[:BATCH], evidence.data.targets[:BATCH], evidence.classifier
    generator = torch.Generator().manual_seed(derive_seed(0, "A24"))
    shares: list[Tensor] = []
    for points in (x, probes.uniform_in_ball(x, probes.largest_linf(evidence), generator)):
        signs = torch.randint(0, 2, points.shape, generator=generator) * 2 - 1
        both = (classifier.logits(p) for p in (points, points + TINY_MOVE * signs))
        margins, moved_margins = (classifier.criterion.margin(logits, y) for logits in both)
        size = max(median(margins.abs().tolist()) or 0.0, 1e-12)
        shares.append((moved_margins - margins).abs() > JUMP * size)
    jumps = torch.stack(shares).any(0)
    value = float(jumps.double().mean())
    reason = f"the margins of {int(jumps.sum())} of {len(jumps)} samples jump when every value moves by {TINY_MOVE:g}"
    return CheckResult(value > limit, value, n=len(jumps), reason=reason)
