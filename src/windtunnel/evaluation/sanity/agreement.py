"""Group E: attacks, certificates and statistics about the same samples must not contradict each other."""

import math
from collections.abc import Iterator
from itertools import permutations

import torch
from scipy.stats import norm as normal
from torch import Tensor

from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.distances import within
from windtunnel.core.scratch import finite_samples, sample_parts
from windtunnel.core.seeds import derive_seed
from windtunnel.evaluation.sanity.attack import perturbing
from windtunnel.evaluation.sanity.check import CheckResult, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, NotApplicable, NotRun, numbers
from windtunnel.evaluation.sanity.probes import onnx_logits
from windtunnel.evaluation.sanity.undecided import blame
from windtunnel.evaluation.summary.evidence import PerturbationBall, examples_of, in_latent_space, of_a_smoothed_model
from windtunnel.evaluation.witness.parameters import at_units, random_units
from windtunnel.records.metadata import number

POINTS, AT_RANDOM = 100, 5000  # random points of a ball; so many balls at most
GAVE_WAY = frozenset({"weaker_method", "step_skipped"})  # caveats: another method than asked for answered, or none


def _verified(assessment: Assessment) -> Tensor:
    return assessment.tensor("verdicts") == Verdict.VERIFIED


def _falsified(assessment: Assessment) -> Tensor:
    return (assessment.tensor("verdicts") == Verdict.FALSIFIED) & assessment.right


def balls(evidence: Evidence) -> list[tuple[Assessment, PerturbationBall]]:
    """Return the verifications with a ball, and their balls. Raises NotApplicable for none."""
    verified_balls = [
        (p, p.region) for p in evidence.verifications if p.region is not None and not of_a_smoothed_model(p.artifacts)
    ]
    if not verified_balls:
        raise NotApplicable("no verification has a ball")
    return verified_balls


@our_check("E1")
def verified_not_attacked(evidence: Evidence, limit: float) -> CheckResult:
    """A certificate and a counter-example of one claim cannot both be right.

    Every perturbed input on disk, whoever made it, measured in the verifier's norm: none inside a certified ball may be
    misclassified.
    """
    clash, bad, n_samples = torch.zeros(len(evidence.ids), dtype=torch.bool), [], 0
    for certificate, ball in balls(evidence):
        certified = evidence.everywhere(certificate, _verified(certificate))
        n_samples += int(certified.sum())
        for assessment in perturbing(evidence):
            if in_latent_space(assessment.artifacts):
                continue
            inside = examples_of(assessment.artifacts) & within(assessment.distance(ball.norm), ball.epsilon)
            hit = evidence.everywhere(assessment, inside) & certified
            if hit.any():
                clash |= hit
                bad += [certificate.name, assessment.name]
    samples = evidence.named(clash)
    reason = f"{int(clash.sum())} samples are verified and broken"
    return CheckResult(bool(bad), int(clash.sum()), n=n_samples, samples=samples, assessments=bad, reason=reason)


@our_check("E2")
def order_of_rates(evidence: Evidence, limit: float) -> CheckResult:
    """The three rates bound the truth from both sides, on the samples that they share.

    Certified accuracy at epsilon against robust accuracy under each attack of the same norm at the same or a smaller
    epsilon, and that against clean accuracy. The value is the largest violation.
    """
    worst, bad, n_samples = -1.0, [], 0
    attacks = [p for p in evidence.assessments if p.family in ("attacks", "queries") and p.region is not None]
    for certificate, ball in balls(evidence):
        certified = evidence.everywhere(certificate, _verified(certificate) & certificate.right)
        for assessment in attacks:
            region = assessment.ball
            shared = evidence.present([certificate]) & evidence.present([assessment])
            if not ball.covers(region) or not shared.any():
                continue
            robust = evidence.everywhere(assessment, assessment.right & ~assessment.succeeded)
            rates = [
                float(mask[shared].double().mean()) for mask in (certified, robust, evidence.subject.clean_correct)
            ]
            gap = max(rates[0] - rates[1], rates[1] - rates[2])
            n_samples, worst = n_samples + 1, max(worst, gap)
            if gap > 1e-9:
                bad += [certificate.name, assessment.name]
    if not n_samples:
        raise NotApplicable("no attack and verification share norm, budget and samples")
    return CheckResult(bool(bad), worst, n=n_samples, assessments=bad, reason="the order of the rates is broken")


@our_check("E3")
def counterexamples_real(evidence: Evidence, limit: float) -> CheckResult:
    """A solver works on another number format and another graph than the model.

    Every falsified sample's example is evaluated in torch, and in onnxruntime where the step that found it worked on
    the ONNX graph: inside the ball and the box (threshold), and not the target's class.
    """
    bad, ids, n_samples = [], [], 0
    criterion = evidence.subject.classifier.criterion
    for verification, ball in balls(evidence):
        certificate = evidence.pictured(verification)
        claimed = _falsified(certificate)
        if not claimed.any():
            continue
        images, targets = certificate.tensor("perturbed_inputs")[claimed], certificate.tensor("targets")[claimed]
        in_box = ((images >= -limit) & (images <= 1 + limit)).flatten(1).all(1)
        inside = in_box & (certificate.distance(ball.norm)[claimed] <= ball.epsilon * (1 + 1e-5) + limit)
        real = inside & (evidence.subject.classifier.predict(images, targets) != targets)
        exported = certificate.decided_on_exported_graph[claimed]
        if exported.any():
            if Capability.ONNX_GRAPH not in evidence.subject.classifier.capabilities:
                raise NotRun("the model has no ONNX graph to ask again")
            real[exported] &= ~criterion.is_correct(onnx_logits(evidence, images[exported]), targets[exported])
        n_samples += len(images)
        if not real.all():
            bad.append(certificate.name)
            ids += [certificate.named(claimed)[i] for i in (~real).nonzero().flatten().tolist()]
    return CheckResult(
        bool(bad), len(ids), n=n_samples, samples=ids, assessments=bad, reason=f"{len(ids)} are no counter-examples"
    )


def _refuted(
    evidence: Evidence, large: tuple[Assessment, PerturbationBall], small: tuple[Assessment, PerturbationBall]
) -> Tensor | None:
    """(N,) bool: verified by `large` and falsified by `small` in the same ball or in one inside it; None for no such balls."""
    (certificate, ball), (other, inner) = large, small
    if certificate.name == other.name or not ball.covers(inner):
        return None
    return evidence.everywhere(certificate, _verified(certificate)) & evidence.everywhere(other, _falsified(other))


@our_check("E4")
def verdicts_monotone(evidence: Evidence, limit: float) -> CheckResult:
    """A smaller ball lies inside the larger.

    Flags a sample verified at an epsilon and falsified at the same or a smaller one, and any sample that stays verified
    at Linf 1, where the ball holds every image.
    """
    clash, bad = torch.zeros(len(evidence.ids), dtype=torch.bool), list[str]()
    certificates = balls(evidence)
    for large, ball in certificates:
        certified = evidence.everywhere(large, _verified(large))
        if (
            ball.norm is Norm.LINF
            and ball.epsilon >= 1
            and certified.any()
            and evidence.subject.clean_predictions.unique().numel() > 1
        ):
            clash, bad = clash | certified, [*bad, large.name]
        for small in certificates:
            hit = _refuted(evidence, (large, ball), small)
            if hit is not None and hit.any():
                clash, bad = clash | hit, [*bad, large.name, small[0].name]
    n = len(certificates)
    reason = "verified in the larger ball, falsified in the smaller"
    return CheckResult(bool(bad), int(clash.sum()), n=n, samples=evidence.named(clash), assessments=bad, reason=reason)


@our_check("E5")
def bounds_contain(evidence: Evidence, limit: float) -> CheckResult:
    """A bound holds for every point of the ball, hence for sampled points.

    Logits of the clean input, of every example in the ball and, for at most 5,000 samples, of 100 random points of it, against
    the stored per-class bounds, up to the threshold relative to the largest logit.
    """
    scale = float(evidence.subject.clean_logits.abs().max().clamp(min=1))
    worst, bad, ids, n_samples = 0.0, [], [], 0
    for certificate, ball in balls(evidence):
        if not certificate.has("output_bounds"):
            continue
        bounds = certificate.artifacts.tensors("output_bounds")
        finite = bounds["lower"].isfinite().all(1) & bounds["upper"].isfinite().all(1)
        if not finite.any():
            continue
        outside = torch.zeros(int(finite.sum()))
        lower, upper = bounds["lower"][finite], bounds["upper"][finite]
        for at, points in _points(evidence, certificate, ball, finite):
            logits = evidence.subject.classifier.logits(points)
            off = torch.maximum(lower[at] - logits, logits - upper[at]).amax(1)
            outside[at] = torch.maximum(outside[at], off)
        n_samples, worst = n_samples + len(outside), max(worst, float(outside.max()) / scale)
        if (outside > limit * scale).any():
            bad.append(certificate.name)
            ids += [certificate.named(finite)[i] for i in (outside > limit * scale).nonzero().flatten().tolist()]
    if not n_samples:
        raise NotApplicable("no verification kept output bounds")
    return listing(bad, "outputs violate the bounds of", value=worst, n=n_samples, samples=ids)


def _points(
    evidence: Evidence, certificate: Assessment, ball: PerturbationBall, finite: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(places among the samples at `finite` of a certificate, points of their balls), a few samples at a time: the clean inputs,
    attacks' examples, and random ones.
    """
    inputs, samples = evidence.subject.dataset.inputs, certificate.indices[finite]
    few = next(sample_parts(inputs)).stop
    for at in torch.arange(len(samples)).split(few):
        yield at, inputs[samples[at]]
    positions = torch.full((len(evidence.ids),), -1).scatter(0, samples, torch.arange(len(samples)))
    for assessment in map(evidence.pictured, perturbing(evidence)):
        inside = within(assessment.distance(ball.norm), ball.epsilon).nonzero().flatten()
        inside = inside[positions[assessment.indices[inside]] >= 0]
        for part in inside.split(few):
            yield positions[assessment.indices[part]], assessment.tensor("perturbed_inputs")[part].clamp(0, 1)
    generator = torch.Generator().manual_seed(derive_seed(evidence.subject.seed, "E5", certificate.name))
    drawn = torch.linspace(0, len(samples) - 1, min(AT_RANDOM, len(samples))).round().long()
    for at in drawn.split(few):
        clean = inputs[samples[at]]
        for k in range(POINTS):
            yield at, random_point(clean, ball, generator, corner=k % 2 == 0)


def random_point(clean: Tensor, ball: PerturbationBall, generator: torch.Generator, *, corner: bool) -> Tensor:
    """Return a random point of each ball inside [0, 1]; on its surface where `corner`, which is where bounds are tight."""
    if transformation := ball.transformation:
        units = random_units(len(clean), len(transformation.names), generator, corner=corner)
        content = torch.rand(clean.shape, generator=generator).round() if transformation.is_patch else None
        return at_units(transformation, ball.epsilon, clean, units, content)
    noise = torch.randn(clean.shape, generator=generator)
    if ball.norm is Norm.LINF:
        step = noise.sign() if corner else 2 * torch.rand(clean.shape, generator=generator) - 1
        return (clean + ball.epsilon * step).clamp(0, 1)
    flat = noise.flatten(1)
    size = flat.norm(dim=1, p=2 if ball.norm is Norm.L2 else 1, keepdim=True)
    radius = 1.0 if corner else torch.rand(len(flat), 1, generator=generator)
    # Clipping to the box moves towards the clean input, so that the point stays in the ball.
    moved: Tensor = clean + (flat / size * radius * ball.epsilon * (1 - 1e-6)).view_as(clean)
    return moved.clamp(0, 1)


@our_check("E6")
def verifiers_agree(evidence: Evidence, limit: float) -> CheckResult:
    """A proof of one verifier cannot be refuted by another in the same ball or in a smaller one."""
    clash, bad, pairs = torch.zeros(len(evidence.ids), dtype=torch.bool), list[str](), 0
    certificates = balls(evidence)
    for first, other in permutations(certificates, 2):
        hit = _refuted(evidence, first, other)
        if hit is None:
            continue
        pairs += 1
        if hit.any():
            clash, bad = clash | hit, [*bad, first[0].name, other[0].name]
    if not pairs:
        raise NotApplicable("no two verifications of one norm")
    samples = evidence.named(clash)
    reason = "verified by one, falsified by the other"
    return CheckResult(bool(bad), int(clash.sum()), n=pairs, samples=samples, assessments=bad, reason=reason)


@our_check("E7")
def unknown_band(evidence: Evidence, limit: float) -> CheckResult:
    """Samples that are neither verified nor broken are undecided.

    The widest share of samples that are right and neither; flags a verification that left (nearly) all of them (threshold),
    and says from the attacks and the other verifications whether the bound or the model is the cause: and what to try.
    """
    bands, why = {}, {}
    certificates = balls(evidence)
    for certificate, ball in certificates:
        if certificate.right.any():
            unknown = certificate.tensor("verdicts") == Verdict.UNKNOWN
            bands[certificate.name] = float(unknown[certificate.right].double().mean())
            if bands[certificate.name] >= limit:
                why[certificate.name] = blame(evidence, certificate, ball, certificates)
    n = len(bands)
    reason = "; ".join(why.values())
    return CheckResult(bool(why), max(bands.values(), default=0.0), n=n, assessments=list(why), reason=reason, each=why)


@our_check("E8")
def no_fallback(evidence: Evidence, limit: float) -> CheckResult:
    """A weaker method's answer must not stand under the stronger one's name. Time-outs and recorded fallbacks."""
    rates = {}
    for certificate, _ in balls(evidence):
        codes = [c.code for c in certificate.artifacts.caveats if c.code in GAVE_WAY]
        timeouts = int(numbers(certificate.artifacts.metrics).get("timeouts", 0))
        if codes or timeouts:
            rates[certificate.name] = timeouts + len(codes)
    n = len(evidence.verifications)
    reason = ", ".join(f"{k}: {v}" for k, v in rates.items())
    return CheckResult(bool(rates), sum(rates.values()), n=n, assessments=list(rates), reason=reason)


@our_check("E9")
def smoothing_plausible(evidence: Evidence, limit: float) -> CheckResult:
    """The largest radius that n draws can certify is sigma x Phi^-1(alpha^(1/n)).

    HARD where a radius exceeds it; WARN for fewer draws than the threshold.
    """
    smoothed = [p for p in evidence.verifications if of_a_smoothed_model(p.artifacts) and p.has("certified_radius")]
    if not smoothed:
        raise NotApplicable("no randomised smoothing among the verifications")
    worst, bad, few = 0.0, [], []
    for certificate in smoothed:
        sigma, draws, alpha = (number(certificate.calls[0], key) for key in ("sigma", "n", "alpha"))
        ceiling = sigma * float(normal.ppf(alpha ** (1 / draws)))
        radius = float(certificate.tensor("certified_radius").nan_to_num(0).max())
        worst = max(worst, radius / ceiling)
        if radius > ceiling * (1 + 1e-6):
            bad.append(certificate.name)
        if draws < limit:
            few.append(certificate.name)
    if bad:
        return CheckResult(
            flagged=True,
            value=worst,
            n=len(smoothed),
            assessments=bad,
            reason=f"radius beyond what n draws can certify in {', '.join(bad)}",
        )
    reason = f"fewer than {limit:.0f} draws in {', '.join(few)}"
    return CheckResult(
        bool(few), worst, n=len(smoothed), assessments=few, reason=reason, severity=Severity.WARN if few else None
    )


@our_check("E14")
def distances_consistent(evidence: Evidence, limit: float) -> CheckResult:
    """Distances can be measured again from the tensors, and norms bound each other.

    Every stored perturbation_distance against the one recomputed in the declared norm (relative, threshold), and
    against sqrt(d) x the largest change of a pixel for L2.
    """
    worst, bad, n_samples = 0.0, [], 0
    for assessment in map(evidence.pictured, perturbing(evidence)):
        ball = assessment.region
        if ball is None or not assessment.has("perturbation_distance"):
            continue
        stored = assessment.tensor("perturbation_distance").double()
        finite = stored.isfinite() & finite_samples(assessment.tensor("perturbed_inputs"))
        if not finite.any():
            continue
        off = (stored[finite] - assessment.distance(ball.norm)[finite].double()).abs() / stored[finite].clamp(min=1e-3)
        wrong = off > limit
        if ball.norm is Norm.L2:
            values = assessment.tensor("clean_inputs")[0].numel()
            ceiling = math.sqrt(values) * assessment.distance(Norm.LINF)[finite].double()
            wrong |= stored[finite] > ceiling * (1 + limit) + 1e-6
        n_samples, worst = n_samples + int(finite.sum()), max(worst, float(off.max()))
        if wrong.any():
            bad.append(assessment.name)
    if not n_samples:
        raise NotApplicable("no assessment stored distances in a pixel norm")
    return listing(bad, "other distances in", value=worst, n=n_samples)
