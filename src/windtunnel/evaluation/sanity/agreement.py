"""Group E: attacks, certificates and statistics about the same samples must not contradict each other."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from scipy.stats import norm as normal
from torch import Tensor

from windtunnel.assessments.verification.audit import Audit, audit
from windtunnel.assessments.verification.cascade.step import asks_exported_graph
from windtunnel.core.batches import evenly_spaced
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.distances import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, within
from windtunnel.core.scratch import finite_samples, sample_parts
from windtunnel.core.seeds import derive_seed
from windtunnel.core.statistics import median
from windtunnel.core.subject import Subject
from windtunnel.evaluation.sanity.attack import perturbing
from windtunnel.evaluation.sanity.check import CheckResult, NotApplicable, NotRun, Severity, listing, our_check
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, numbers
from windtunnel.evaluation.sanity.probes import onnx_logits
from windtunnel.evaluation.summary.evidence import examples_of, in_latent_space
from windtunnel.evaluation.witness.parameters import at_units, random_units
from windtunnel.records.metadata import names_in, number
from windtunnel.records.regions import PerturbationBall, of_a_smoothed_model

POINTS, AT_RANDOM = 100, 5000  # random points of a ball; so many balls at most
NEARLY_NONE = 0.05  # a share up to which attacks or other verifications are taken to have found nothing
TIGHT = 2.0  # bounds of a model whose logits truly move half as far as they allow leave little to gain
VERDICTS_AUDITED = 8  # of each verification, that another implementation is asked for
GAVE_WAY = frozenset({"weaker_method", "step_skipped"})  # caveats: another method than asked for answered, or none


def _verified(assessment: Assessment) -> Tensor:
    return assessment.tensor("verdicts") == Verdict.VERIFIED


def _falsified(assessment: Assessment) -> Tensor:
    return (assessment.tensor("verdicts") == Verdict.FALSIFIED) & assessment.right


def balls(evidence: Evidence) -> list[tuple[Assessment, PerturbationBall]]:
    """Return the verifications with a ball, and their balls. Raises NotApplicable for none."""
    of_the_model = [p for p in evidence.verifications if not of_a_smoothed_model(p.artifacts)]
    verified_balls = [(p, p.region) for p in of_the_model if p.region is not None]
    if not verified_balls:
        raise NotApplicable("no verification has a ball")
    return verified_balls


@our_check("E1")
def verified_not_attacked(evidence: Evidence, limit: float) -> CheckResult:
    """A certificate and a counter-example of one claim cannot both be right.

    Every perturbed input on disk, whoever made it, measured in the verifier's norm: none inside a certified ball may be
    misclassified, nor nearer than the sample's certified radius.
    """
    hits, n_samples = [], 0
    for certificate, ball in balls(evidence):
        largest = ball.epsilon * (1 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE
        reach = torch.where(_verified(certificate), largest, -torch.inf)  # of what is certified around each sample
        if certificate.has("certified_radius"):
            radii = certificate.tensor("certified_radius") * (1 - RELATIVE_TOLERANCE)
            radii = radii.where(radii > 0, -torch.inf)  # 0 of a misclassified sample
            reach = reach.maximum(radii)
            if certificate.has("broken_radius"):
                crossed = certificate.tensor("broken_radius") < radii
                hits.append(([certificate.name], evidence.everywhere(certificate, crossed)))
        certified = torch.full((len(evidence.ids),), -torch.inf)
        certified[certificate.indices] = reach
        n_samples += int(reach.isfinite().sum())
        for assessment in perturbing(evidence):
            if not in_latent_space(assessment.artifacts):
                is_inside = assessment.distance(ball.norm) <= certified[assessment.indices]
                broken = evidence.everywhere(assessment, examples_of(assessment.artifacts) & is_inside)
                hits.append(([certificate.name, assessment.name], broken))
    return _clash(evidence, hits, n_samples, "{n} samples are verified and broken")


def _clash(evidence: Evidence, hits: Iterable[tuple[list[str], Tensor]], n: int, reason: str) -> CheckResult:
    """Return the result for assessments, by name, and the samples on which they contradict each other; (N,) bool."""
    clash, bad = torch.zeros(len(evidence.ids), dtype=torch.bool), list[str]()
    for names, hit in hits:
        clash |= hit
        bad += names if hit.any() else []
    count = int(clash.sum())
    return CheckResult(bool(bad), count, n, evidence.named(clash), bad, reason.format(n=count))


@our_check("E2", "the order of the rates is broken", none="no attack and verification share norm, budget and samples")
def order_of_rates(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """The three rates bound the truth from both sides, on the samples that they share.

    Certified accuracy at epsilon against robust accuracy under each attack of the same norm at the same or a smaller
    epsilon, and that against clean accuracy. The value is the largest violation.
    """
    attacks = [p for p in evidence.assessments if p.family in ("attacks", "queries") and p.region is not None]
    for certificate, ball in balls(evidence):
        certified = evidence.everywhere(certificate, _verified(certificate) & certificate.right)
        for assessment in attacks:
            shared = evidence.present([certificate]) & evidence.present([assessment])
            if not ball.covers(assessment.ball) or not shared.any():
                continue
            robust = evidence.everywhere(assessment, assessment.right & ~assessment.succeeded)
            masks = (certified, robust, evidence.subject.clean_correct)
            low, middle, high = (float(mask[shared].double().mean()) for mask in masks)
            gap = max(low - middle, middle - high)
            yield CheckResult(gap > 1e-9, gap, assessments=[certificate.name, assessment.name])


@our_check("E3", "{count} are no counter-examples", value=None)
def counterexamples_real(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A solver works on another number format and another graph than the model.

    Every falsified sample's example is evaluated in torch, and in onnxruntime where the step that found it worked on
    the ONNX graph: inside the ball and the box (threshold), and not the target's class.
    """
    classifier = evidence.classifier
    for verification, ball in balls(evidence):
        certificate = evidence.pictured(verification)
        claimed = _falsified(certificate)
        if not claimed.any():
            continue
        images, targets = certificate.tensor("perturbed_inputs")[claimed], certificate.tensor("targets")[claimed]
        in_box = ((images >= -limit) & (images <= 1 + limit)).flatten(1).all(1)
        inside = in_box & (certificate.distance(ball.norm)[claimed] <= ball.epsilon * (1 + 1e-5) + limit)
        real = inside & (classifier.predict(images, targets) != targets)
        names = names_in(certificate.metadata.kwargs, "decided_by_names")
        steps = torch.tensor([i for i, name in enumerate(names) if asks_exported_graph(name)], dtype=torch.int64)
        exported = torch.isin(certificate.tensor("decided_by"), steps)[claimed]
        if exported.any():
            if Capability.ONNX_GRAPH not in classifier.capabilities:
                raise NotRun("the model has no ONNX graph to ask again")
            logits = onnx_logits(evidence, images[exported])
            real[exported] &= ~classifier.criterion.is_correct(logits, targets[exported])
        samples = certificate.named(claimed.nonzero().flatten()[~real])
        yield CheckResult(bool(samples), None, len(images), samples, [certificate.name])


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
    """A smaller ball lies inside the larger, and a proof of one verifier cannot be refuted by another.

    Flags a sample verified at an epsilon and falsified at the same or a smaller one, and any sample that stays verified
    at Linf 1, where the ball holds every image.
    """
    hits, certificates = [], balls(evidence)
    several_classes = evidence.subject.clean_predictions.unique().numel() > 1
    for large, ball in certificates:
        if ball.norm is Norm.LINF and ball.epsilon >= 1 and several_classes:
            hits.append(([large.name], evidence.everywhere(large, _verified(large))))
        hits += [
            ([large.name, small[0].name], hit)
            for small in certificates
            if (hit := _refuted(evidence, (large, ball), small)) is not None
        ]
    return _clash(evidence, hits, len(certificates), "verified in the larger ball, falsified in the smaller")


@our_check("E5", "outputs violate the bounds of {names}", none="no verification kept output bounds")
def bounds_contain(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """A bound holds for every point of the ball, hence for sampled points.

    Logits of the clean input, of every example in the ball and, for at most 5,000 samples, of 100 random points of it, against
    the stored per-class bounds, up to the threshold relative to the largest logit.
    """
    scale = float(evidence.subject.clean_logits.abs().max().clamp(min=1))
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
            logits = evidence.classifier.logits(points)
            off = torch.maximum(lower[at] - logits, logits - upper[at]).amax(1)
            outside[at] = torch.maximum(outside[at], off)
        samples = certificate.named(finite.nonzero().flatten()[outside > limit * scale])
        value, names = max(0.0, float(outside.max())) / scale, [certificate.name]
        yield CheckResult(bool(samples), value, len(outside), samples, names)


def _points(
    evidence: Evidence, certificate: Assessment, ball: PerturbationBall, finite: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(places among the samples at `finite` of a certificate, points of their balls), a few samples at a time: the clean inputs,
    attacks' examples, and random ones.
    """
    inputs, samples = evidence.data.inputs, certificate.indices[finite]
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
    drawn = evenly_spaced(len(samples), AT_RANDOM)
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


@our_check("E7")
def unknown_band(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Samples that are neither verified nor broken are undecided.

    The widest share of samples that are right and neither; flags a verification that left (nearly) all of them (threshold),
    and says from the attacks and the other verifications whether the bound or the model is the cause: and what to try.
    """
    certificates = balls(evidence)
    for certificate, ball in certificates:
        if certificate.right.any():
            unknown = certificate.tensor("verdicts") == Verdict.UNKNOWN
            share = float(unknown[certificate.right].double().mean())
            reason = _blame(evidence, certificate, ball, certificates) if share >= limit else ""
            yield CheckResult(share >= limit, share, assessments=[certificate.name], reason=reason)


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
    ratios, bad, few = [], [], []
    for certificate in smoothed:
        sigma, draws, alpha = (number(certificate.calls[0], key) for key in ("sigma", "n", "alpha"))
        ceiling = sigma * float(normal.ppf(alpha ** (1 / draws)))
        radius = float(certificate.tensor("certified_radius").nan_to_num(0).max())
        ratios.append(radius / ceiling)
        if radius > ceiling * (1 + 1e-6):  # few draws have a negative ceiling: they certify nothing
            bad.append(certificate.name)
        if draws < limit:
            few.append(certificate.name)
    worst, n = max(0.0, *ratios), len(smoothed)
    if bad:
        return listing(bad, "radius beyond what n draws can certify in", value=worst, n=n)
    return listing(few, f"fewer than {limit:.0f} draws in", value=worst, n=n, severity=Severity.WARN)


@our_check("E14", "other distances in {names}", none="no assessment stored distances in a pixel norm")
def distances_consistent(evidence: Evidence, limit: float) -> Iterator[CheckResult]:
    """Distances can be measured again from the tensors, and norms bound each other.

    Every stored perturbation_distance against the one recomputed in the declared norm (relative, threshold), and
    against sqrt(d) x the largest change of a pixel for L2.
    """
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
        yield CheckResult(bool(wrong.any()), float(off.max()), len(off), assessments=[assessment.name])


@our_check("E15")
def certificates_stand(evidence: Evidence, limit: float) -> CheckResult:
    """A certificate is worth what somebody else finds when looking for its fault.

    At most `sanity.samples` certified samples of each verification are attacked in float64, each in the largest ball that is
    certified, at each other class in turn with restarts; eight verdicts are asked of an implementation that shares no bound with the
    one that reached them (branch and bound against auto-LiRPA and Marabou, and the other way round), with limited work. Any
    counter-example to a certificate, and any pair of opposite verdicts, flags. `windtunnel verify --audit NAME` does the same now,
    for more samples.
    """
    bad, ids, attacked, agreed, n_checked = list[str](), set[str](), 0, 0, 0
    for verification, ball in balls(evidence):
        audit = audited(evidence.subject, verification, ball, evidence.params.sanity.samples)
        attacked, agreed, n_checked = attacked + audit.attacked, agreed + audit.agreed, n_checked + audit.asked
        if audit.broken or audit.contradicted:
            bad.append(verification.name)
            ids |= {*audit.broken, *audit.contradicted}
    if not attacked and not n_checked:
        raise NotApplicable("no verification decided anything")
    reason = f"{len(ids)} verdicts are contradicted"
    confirmed = f"{agreed} of {n_checked} verdicts confirmed by another implementation"
    note = f"{attacked} certified samples attacked; {confirmed}"
    return CheckResult(bool(bad), len(ids), attacked + n_checked, sorted(ids), bad, reason, note)


def audited(
    subject: Subject,
    verification: Assessment,
    ball: PerturbationBall,
    certified: int,
    n_verdicts: int = VERDICTS_AUDITED,
) -> Audit:
    """Return the audit of one verification of the run; subject: of all samples."""
    chosen = subject.subset(verification.indices)
    return audit(verification.artifacts, chosen, ball.norm, ball.epsilon, certified, n_verdicts)


def _blame(
    evidence: Evidence,
    certificate: Assessment,
    ball: PerturbationBall,
    balls: Sequence[tuple[Assessment, PerturbationBall]],
) -> str:
    """Return the cause of the samples that `certificate` left undecided in `ball`, the evidence, and what to try.

    From what is on disk alone: samples that another verification of `balls` proves in a ball as large are the bound's fault,
    samples broken inside the ball are the model's. Where neither is found, bounds that are far wider than the changes
    of the logits under attack are the bound's fault again.
    """
    unknown = certificate.right & (certificate.tensor("verdicts") == Verdict.UNKNOWN)
    undecided = evidence.everywhere(certificate, unknown)
    n = int(undecided.sum())
    opened = f"{certificate.name} leaves {n} of {int(certificate.right.sum())} samples undecided"
    proving = {
        other.name: int((evidence.everywhere(other, _verified(other)) & undecided).sum())
        for other, region in balls
        if other.name != certificate.name and region.norm is ball.norm and region.epsilon >= ball.epsilon
    }
    best = max(proving, key=lambda name: proving[name], default=None)
    if best is not None and proving[best] > NEARLY_NONE * n:
        return f"{opened}: the bound is the cause: {best} verifies {proving[best]} of them; use the method of {best}"
    perturbing = [p for p in evidence.assessments if p.has("perturbed_inputs") and not in_latent_space(p.artifacts)]
    broken = int((evidence.union(perturbing, lambda p: p.examples_inside(ball)) & undecided).sum())
    attack_note = f"attacks at this epsilon break {broken} of them"
    # What attacks of no smaller budget leave was attacked in the whole ball.
    attacks = [
        p
        for p in evidence.assessments
        if p.family in ("attacks", "queries") and p.region is not None and p.region.norm is ball.norm
        if p.region.epsilon >= ball.epsilon * (1 - 1e-9)
    ]
    tried = int((evidence.covered(attacks) & undecided).sum())
    if broken > n / 2:
        return (
            f"{opened}: the model is the cause: {broken} of them are broken inside the ball; try a smaller epsilon, or "
            f"train the model for this one (model.train.recipe: adversarial)"
        )
    if tried <= n / 2:
        return (
            f"{opened}: the cause is unknown, because no attack tried most of them "
            f"at this epsilon; add one (PGD, Linf or L2) on the same samples"
        )
    if broken > NEARLY_NONE * n:
        return f"{opened}: the model is the cause for {broken} broken inside the ball, the bound for others; {_try(certificate)}"
    looseness = _looseness(evidence, certificate, ball, attacks, unknown)
    if looseness is not None and looseness <= TIGHT:
        return (
            f"{opened}: the model is the cause: {attack_note} and move its logits by 1/{looseness:.1f} of the bound's width: its "
            f"margins are small; try a smaller epsilon, or train the model for this one (model.train.recipe: adversarial)"
        )
    wide = "" if looseness is None else f" and it is {looseness:.3g} times as wide as the observed range of the logits"
    return f"{opened}: the bound is the cause: {attack_note}{wide}; {_try(certificate)}"


def _try(certificate: Assessment) -> str:
    """Suggest a method that decides more samples than `certificate`."""
    name = certificate.metadata.algorithm
    method, suffix = (name[:-3], name[-3:]) if name.endswith(("-l1", "-l2")) else (name, "")
    if "complete" in certificate.categories:
        return "give the search more time, or take a smaller epsilon"
    if method == "alpha-crown":
        return f"try branch-and-bound{suffix}, or a smaller epsilon"
    return f"try alpha-crown{suffix} or branch-and-bound{suffix}, or a smaller epsilon"


def _looseness(
    evidence: Evidence, certificate: Assessment, ball: PerturbationBall, attacks: Sequence[Assessment], unknown: Tensor
) -> float | None:
    """Return the median ratio of bound width to the largest logit change by an attack inside the ball; None for no pair."""
    if not certificate.has("output_bounds"):
        return None
    bounds = certificate.artifacts.tensors("output_bounds")
    moved = torch.zeros(len(evidence.ids))
    for attack in attacks:
        if attack.has("perturbed_logits"):
            change = (attack.tensor("perturbed_logits") - evidence.subject.clean_logits[attack.indices]).abs().amax(1)
            change = change.where(within(attack.distance(ball.norm), ball.epsilon), torch.zeros(()))
            moved[attack.indices] = torch.maximum(moved[attack.indices], change)
    moved, clean = moved[certificate.indices], evidence.subject.clean_logits[certificate.indices]
    allowed = torch.maximum(bounds["upper"] - clean, clean - bounds["lower"]).amax(1)
    near = unknown & (moved > 0) & allowed.isfinite()
    return median((allowed[near] / moved[near]).tolist())
