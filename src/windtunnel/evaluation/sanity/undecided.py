"""Diagnose a verification that decides (nearly) nothing: is the bound or the model the cause, and what to try next?"""

from collections.abc import Sequence

import torch
from torch import Tensor

from windtunnel.core.contracts import Verdict
from windtunnel.core.distances import within
from windtunnel.core.statistics import median
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence
from windtunnel.evaluation.summary.evidence import PerturbationBall, in_latent_space

NEARLY_NONE = 0.05  # a share up to which attacks or other verifications are taken to have found nothing
TIGHT = 2.0  # bounds of a model whose logits truly move half as far as they allow leave little to gain


def blame(
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
        other.name: int((evidence.everywhere(other, other.tensor("verdicts") == Verdict.VERIFIED) & undecided).sum())
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
