"""An analytic case: linear decoders and a linear classifier, so that the nearest change of class is a closed form."""

import torch
from torch import nn

from windtunnel.assessments.latent.noise import shrink
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.core.classifier import Classifier
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of


class LinearGenerator(nn.Module):
    """Images A_c l + b_c of class c; encodes exactly, since A_c has full column rank."""

    def __init__(self, classes: int, dim: int, size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrices = torch.randn(classes, size, dim, generator=generator) * 0.3
        self.offsets = torch.randn(classes, size, generator=generator)
        self.latent_dim = dim

    def decode(self, latents, classes):
        return torch.einsum("nsd,nd->ns", self.matrices[classes], latents) + self.offsets[classes]

    def encode(self, images, classes):
        inverse = torch.linalg.pinv(self.matrices)[classes]
        return torch.einsum("nds,ns->nd", inverse, images - self.offsets[classes])


def linear_case(classes: int = 3, n: int = 40, dim: int = 6, size: int = 9) -> tuple[Subject, FittedGenerator]:
    """A subject whose samples are the generator's own images, and the generators."""
    model = LinearGenerator(classes, dim, size)
    layer = nn.Linear(size, classes)
    # Class c scores highest around the images of class c, so that most codes are classified rightly.
    layer.weight.data, layer.bias.data = model.offsets.clone(), -model.offsets.square().sum(1) / 2
    layer.requires_grad_(False)
    targets = torch.arange(n) % classes
    codes = torch.randn(n, dim, generator=torch.Generator().manual_seed(1))
    data = Dataset(model.decode(codes, targets), targets, tuple(map(str, range(n))), tuple(map(str, range(classes))),
                   value_range=(-10.0, 10.0))  # fmt: skip
    classifier = Classifier(layer, classes, (size,), frozenset(Capability), "linear", "linear")
    return subject_of(classifier, data), FittedGenerator(
        model, classes, (-10.0, 10.0), (-10.0, 10.0), "linear", "linear"
    )


def closed_form(
    subject: Subject, generators: FittedGenerator, codes: torch.Tensor, classes: torch.Tensor, epsilon: float
):
    """Scaled norm of the smallest class-changing change of each decayed code; 0 where the class is another already."""
    model, layer = generators.model, subject.classifier.module
    centres = codes * shrink(epsilon)
    scores = layer(model.decode(centres, classes))
    gaps = scores.gather(1, classes[:, None]) - scores
    normals = torch.einsum("nks,nsd->nkd", layer.weight[classes][:, None] - layer.weight[None], model.matrices[classes])
    distances = gaps / normals.norm(dim=2).clamp_min(1e-12)
    distances[torch.arange(len(classes)), classes] = torch.inf
    return distances.amin(1).clamp(min=0) / model.latent_dim**0.5
