"""FAB with the nearest example of all that it found."""

import torch
import torchattacks
from torch import Tensor

from windtunnel.core.contracts import Norm
from windtunnel.core.distances import distance


class NearestFAB(torchattacks.FAB):  # type: ignore[misc]  # torchattacks has no types
    """FAB (Croce, Hein 2020, arXiv 1907.02044) that returns the nearest example of all restarts and targets.

    As in the library, a sample is done once an example lies within epsilon, restarts are drawn inside that ball, and the
    starts depend on the seed alone; so the samples broken within epsilon are the library's. A sample without any example
    comes back as it was.
    """

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the nearest examples found for inputs `x` (n, C, H, W) of labels `y` (n,)."""
        with torch.no_grad():
            nearest, norm = x.clone(), Norm(self.norm)
            right = self.get_logits(x).argmax(1) == y
            reached = torch.where(right, torch.inf, 0.0)
            torch.manual_seed(self.seed)
            for aim in range(2, self.n_target_classes + 2) if self.multi_targeted else [None]:
                self.target_class = aim  # its rank among the logits
                for restart in range(self.n_restarts):
                    indices = (right & (reached > self.eps)).nonzero().flatten()
                    if not len(indices):
                        return nearest
                    run = self.attack_single_run_targeted if self.multi_targeted else self.attack_single_run
                    example = run(x[indices], y[indices], use_rand_start=restart > 0)
                    distances = distance(norm, example, x[indices])
                    closer = (self.get_logits(example).argmax(1) != y[indices]) & (distances < reached[indices])
                    nearest[indices[closer]], reached[indices[closer]] = example[closer], distances[closer]
        return nearest
