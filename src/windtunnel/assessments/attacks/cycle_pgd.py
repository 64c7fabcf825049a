"""torchattacks 3.5.1's PGD without the steps that only repeat earlier ones; the result has the same bytes."""

import random
from functools import partial

import numpy as np
import torch
import torchattacks
from torch import Tensor
from torch.nn.functional import cross_entropy


class CyclePGD(torchattacks.PGD):  # type: ignore[misc]  # torchattacks has no types
    """PGD that stops a sample whose iterate returned bit for bit to an earlier one: its steps repeat for ever.

    With sign steps of constant size the next iterate is a function of this one, if the model is deterministic and its
    gradients do not depend on the other samples of the batch. If x[t] = x[s], then x[T] = x[s + (T - s) mod (t - s)]. A
    cycle is found by Brent's method, which keeps one earlier iterate. Nothing is skipped where random numbers were drawn
    meanwhile. Where half of a batch yields other gradients than the whole, all samples must return at once, and no sample
    leaves the batch.

    Source: the cycles of PGD and their use, arXiv 2503.19347; R. P. Brent 1980, doi:10.1007/BF01933190.

    Attributes:
        gradients: how many gradients of single samples the last call computed.
        loss: from logits (B, K) and labels (B,) to the sum over the samples of what is maximised, ().

    """

    gradients = 0
    loss = staticmethod(partial(cross_entropy, reduction="sum"))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the perturbed inputs, float32 (B, C, H, W).

        Args:
            images: float32 (B, C, H, W) in [0, 1].
            labels: int64 (B,); in targeted mode the target classes.

        """
        images, labels = images.clone().detach().to(self.device), labels.clone().detach().to(self.device)
        sign = -1 if self.targeted else 1
        if self.targeted:
            labels = self.get_target_label(images, labels)
        self.gradients, size = 0, len(images)
        x = images.clone()
        if self.random_start:
            x = torch.clamp(x + torch.empty_like(x).uniform_(-self.eps, self.eps), min=0, max=1)

        def gradient(x: Tensor, rows: Tensor) -> Tensor:
            self.gradients += len(x)
            x = x.detach().requires_grad_()
            # The library's mean over the whole batch, whatever is left of it: a factor may round a gradient to 0.
            cost = sign * (self.loss(self.get_logits(x), labels[rows]) / size)
            return torch.autograd.grad(cost, x)[0]

        result, rows = x.clone(), torch.arange(size, device=x.device)
        last_step = torch.full((size,), self.steps, device=x.device)
        saved, saved_step, generators = x, 0, _generators(x)
        independent: bool | None = None  # None: not compared yet
        can_shrink = True
        for step in range(1, self.steps + 1):
            slope = gradient(x, rows)
            remaining = last_step[rows] >= step
            if can_shrink and 2 * int(remaining.sum()) <= len(rows):
                can_shrink = torch.equal(gradient(x[remaining], rows[remaining]), slope[remaining])
                if can_shrink:
                    x, saved, slope, rows = x[remaining], saved[remaining], slope[remaining], rows[remaining]
            x = x.detach() + self.alpha * slope.sign()
            delta = torch.clamp(x - images[rows], min=-self.eps, max=self.eps)
            x = torch.clamp(images[rows] + delta, min=0, max=1).detach()
            returned = (x == saved).flatten(1).all(1) & (last_step[rows] == self.steps)
            if step < self.steps and returned.any() and _generators(x) == generators:
                if independent is None:
                    half = slice((len(x) + 1) // 2)
                    independent = torch.equal(gradient(x[half], rows[half]), gradient(x, rows)[half])
                    can_shrink = independent
                if independent or bool((x == saved).all()):
                    last_step[rows[returned]] = step + (self.steps - step) % (step - saved_step)
            ended = last_step[rows] == step
            result[rows[ended]] = x[ended]
            if bool((last_step <= step).all()):
                break
            if step & (step - 1) == 0:  # a power of two
                saved, saved_step, generators = x, step, _generators(x)
        return result


def _generators(x: Tensor) -> tuple[bytes, ...]:
    """Return the states of the random generators that a model may draw from."""
    kind, keys, position, *_ = np.random.get_state()  # noqa: NPY002  a model's own code may use it
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(x.device)] if x.is_cuda else [])]
    return (
        *(state.numpy().tobytes() for state in states),
        str((kind, position)).encode() + np.asarray(keys).tobytes(),
        repr(random.getstate()).encode(),
    )
