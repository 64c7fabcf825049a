"""An attack library with one attack: the best of a few random sign patterns."""

import torch

from windtunnel.plugins import AttackRow, Lazy, Library, Norm, Randomness, ThreatModel, algorithm


def RandomSigns(tries: int = 5): ...


def perturb(request, model):
    """Of `tries` corners of the Linf ball, the one with the largest loss, for each image."""
    best, worst = request.inputs, torch.full((len(request.labels),), -torch.inf)
    for _ in range(request.arguments.get("tries", 5)):
        corner = (request.inputs + request.budget.epsilon * torch.randn_like(request.inputs).sign()).clamp(0, 1)
        loss = torch.nn.functional.cross_entropy(model(corner), request.labels, reduction="none")
        best = torch.where((loss > worst).view(-1, 1, 1, 1), corner, best)
        worst = worst.maximum(loss)
    return best


SEES = ThreatModel.BLACK_BOX_SCORE
ROWS = (AttackRow(algorithm("signs", "RandomSigns", SEES, Norm.LINF, "random", Randomness.GLOBAL_RNG), steps="tries"),)
LIBRARY = Library(
    name="signs",
    family="attacks",
    package="windtunnel-signs",
    rows=Lazy("signs.library:ROWS"),
    adapter=Lazy("signs.library:perturb"),
    module="signs.library",
)
