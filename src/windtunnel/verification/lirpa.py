"""auto-LiRPA: lower bounds of the margins of a batch of samples, and bounds of its logits."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import IncompatibleError
from windtunnel.verification.shims import shim_auto_lirpa
from windtunnel.verification.table import LIRPA_METHOD

_P = {Norm.LINF: float("inf"), Norm.L2: 2.0, Norm.L1: 1.0}
# With these off, 0.3's alpha-CROWN indexes the wrong shapes; for CROWN the sparse bounds are the faster ones.
_DENSE = {"sparse_intermediate_bounds": False, "sparse_features_alpha": False, "sparse_spec_alpha": False}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one batch over its region.

    margins: float32 (n, K-1), lower bounds of logit(target) - logit(rival), rivals in class order.
    lower, upper: float32 (n, K), bounds of the logits themselves, for the figures.
    """

    margins: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def worst_margin(self) -> Tensor:
        """(n,) the smallest margin bound; above 0 proves the sample."""
        return self.margins.amin(1)


def margin_matrix(targets: Tensor, num_classes: int) -> Tensor:
    """(n, K-1, K): row r of sample i is e_target - e_rival, so that C @ logits are the margins over all rivals."""
    eye = torch.eye(num_classes)
    full = eye[targets][:, None, :] - eye[None]
    rival = torch.ones(len(targets), num_classes, dtype=torch.bool).scatter(1, targets[:, None], value=False)
    return full[rival].view(len(targets), num_classes - 1, num_classes)


def bound_batch(
    classifier: Classifier,
    inputs: Tensor,
    targets: Tensor,
    norm: Norm,
    epsilon: float,
    method: str,
    *,
    logits: bool = True,
) -> Bounds:
    """Bound the margins of `inputs` (n, C, H, W) over the ball of `epsilon`, for Linf cut off at the image domain [0, 1].

    The margins are bounded themselves, by a specification matrix: the difference of two bounds would be far looser.
    `logits` false skips the logits' own bounds (NaN). Raises IncompatibleError for an operator without a bound.
    """
    shim_auto_lirpa()
    with warnings.catch_warnings():
        # auto-LiRPA 0.3 compiles with torch.jit.script at import, which torch 2.13 calls deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        from auto_LiRPA import BoundedModule, BoundedTensor
        from auto_LiRPA.perturbations import PerturbationLpNorm

    device = classifier.device
    x = inputs.to(device)
    low = high = None
    if norm is Norm.LINF:
        low, high = (x - epsilon).clamp(0, 1), (x + epsilon).clamp(0, 1)
    region = PerturbationLpNorm(norm=_P[norm], eps=epsilon, x_L=low, x_U=high)
    optimised = method == "alpha-crown"
    name = LIRPA_METHOD[method]
    try:
        # A fresh module a batch: 0.3 keeps the intermediate bounds of the last batch.
        module = BoundedModule(
            classifier.module, x[:1], bound_opts=_DENSE if optimised else {}, device=str(device), verbose=False
        )
        ball = BoundedTensor(x, region)
        specification = margin_matrix(targets, classifier.num_classes).to(device)
        with torch.set_grad_enabled(optimised):
            margins, _ = module.compute_bounds(x=(ball,), C=specification, method=name, bound_upper=False)
        nothing = torch.full((len(x), classifier.num_classes), torch.nan)
        lower, upper = nothing, nothing
        if logits:
            with torch.no_grad():
                plain = "IBP+backward" if optimised else name
                lower, upper = module.compute_bounds(x=(ball,), method=plain)
    except (NotImplementedError, KeyError, AttributeError) as error:  # what 0.3 raises for an operator it lacks
        raise IncompatibleError(
            f"auto-LiRPA cannot bound {classifier.source}: {type(error).__name__} {error}; it supports convolutions, "
            f"linear layers, batch normalisation, ReLU and non-overlapping pooling"
        ) from error
    return Bounds(margins.detach().float().cpu(), lower.detach().float().cpu(), upper.detach().float().cpu())
