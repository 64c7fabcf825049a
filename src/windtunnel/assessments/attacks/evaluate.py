"""Evaluate perturbed inputs: project, classify and measure them, independently of the library's own result."""

from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.assessments.attacks.rows import AttackRow
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm, PerturbationBudget
from windtunnel.core.distances import distance, within
from windtunnel.core.transformations import transformation_of
from windtunnel.core.transformed import clipped, parameter_distances, transform

# An attack that takes no epsilon but lands this near outside the ball is pulled in: rounding, not another budget.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation of n perturbed inputs: float32 (n, ...) as they are stored, logits (n, K), predictions (n,), distances (n,).

    parameters: float64 (n, P) of the transformations that made them; P is 0 for what is none.
    reached: whether the objective is met at any distance; succeeded: met within the budget. beyond, repaired: the
    attack returned more than the budget allows, or something that is no image.
    """

    parameters: Tensor
    perturbed: Tensor
    logits: Tensor
    predictions: Tensor
    distances: Tensor
    reached: Tensor
    succeeded: Tensor
    beyond: Tensor
    repaired: Tensor


def evaluate(
    classifier: Classifier,
    row: AttackRow,
    budget: PerturbationBudget,
    clean: Tensor,
    returned: Tensor,
    labels: Tensor,
    aims: Tensor | None,
    parameters: Tensor | None = None,
) -> Evaluation:
    """Evaluate an attack's result for `clean`; all tensors (n, ...) on the CPU.

    A value that is not finite makes the sample the clean one again; values outside [0, 1] are clipped. An attack that
    takes an epsilon is held to it by projection, and evaluated; one that finds its own distance is not, and
    fails where it is further away than the budget. A transformation is measured by its `parameters` (n, P), as they are
    stored, from which its image is made again; of a patch its content is taken from `returned`.
    """
    transformation, epsilon = transformation_of(budget.norm), budget.epsilon
    beyond = repaired = torch.zeros(len(clean), dtype=torch.bool)
    stored = torch.zeros(len(clean), 0, dtype=torch.float64)
    if transformation is not None:
        assert parameters is not None
        assert epsilon is not None
        stored = clipped(transformation, parameters.float(), epsilon)
        content = returned.clamp(0, 1) if transformation.is_patch else None
        image = transform(transformation, clean, stored.double(), content)
        distances = parameter_distances(transformation, transformation.table(stored))
    else:
        finds_distance = row.epsilon is None or row.algorithm.minimum_norm
        repaired = ~returned.flatten(1).isfinite().all(1)
        image = torch.where(_rows(repaired, returned), clean, returned).clamp(0, 1)
        distances = distance(budget.norm, image, clean)
        if epsilon is not None:
            is_near = within(distances, epsilon * (1 + ROUNDING))
            pulled = ~within(distances, epsilon) & (is_near if finds_distance else torch.ones_like(is_near))
            if pulled.any():
                image = torch.where(_rows(pulled, image), project(budget.norm, epsilon, image, clean), image)
                distances = distance(budget.norm, image, clean)
            if not row.algorithm.minimum_norm:  # at any distance is what it is for
                beyond = ~is_near
    logits = classifier.logits(image)
    predictions = classifier.criterion.predict(logits, labels)
    reached = predictions != labels if aims is None else predictions == aims
    allowed = torch.ones_like(reached) if epsilon is None else within(distances, epsilon)
    return Evaluation(stored, image, logits, predictions, distances, reached, reached & allowed, beyond, repaired)


def project(norm: Norm, epsilon: float, perturbed: Tensor, clean: Tensor) -> Tensor:
    """Return the perturbed inputs (n, ...) pulled back into the ball; stays in the box, as it only moves towards `clean`.

    Linf clips, L2 and L1 scale the change down, L0 keeps the largest changes.
    """
    if norm is Norm.LINF:
        return torch.minimum(torch.maximum(perturbed, clean - epsilon), clean + epsilon)
    change = (perturbed.double() - clean.double()).flatten(1)
    if norm is Norm.L0:
        budgeted = min(int(epsilon), change.shape[1])
        order = change.abs().argsort(dim=1, descending=True, stable=True)
        mask = torch.zeros_like(change).scatter_(1, order[:, :budgeted], 1.0)
        return torch.where(mask.bool().view_as(clean), perturbed, clean)
    size = change.norm(p=2 if norm is Norm.L2 else 1, dim=1, keepdim=True).clamp(min=1e-30)
    scaled: Tensor = clean.double().flatten(1) + change * (epsilon / size).clamp(max=1)
    return scaled.float().view_as(clean)


def _rows(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (like.ndim - 1))
