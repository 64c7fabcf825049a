"""Defences of further kinds, with the network that an attack by hand differentiates, and honest models.

Papernot, McDaniel 2018, arXiv 1803.04765 (neighbours in a layer); Samangouei et al. 2018, arXiv 1805.06605 (projection onto a
generator); Verma, Swami 2019 (error-correcting output codes); He et al. 2019 (noise in hidden layers).
"""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gallery.honest import Averaged, Pair, fitted, trained
from benchmarks.gallery.masks import Around, BesideImages, straight_through
from benchmarks.gallery.unseen import Named

EDGES = torch.linspace(0.1, 0.9, 9)  # of a thermometer code


class Coded(nn.Module):
    """A perceptron on thermometer codes by `torch.bucketize` and a table; `is_soft` takes sigmoids in place of the code."""

    def __init__(self, classes: int, *, is_soft: bool = False) -> None:
        super().__init__()
        self.is_soft = is_soft
        self.register_buffer("table", torch.ones(len(EDGES) + 1, len(EDGES)).tril(-1))
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64 * len(EDGES), 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        if self.is_soft:
            return self.inner(torch.sigmoid((x[..., None] - EDGES) / 0.1))
        return self.inner(self.table[torch.bucketize(x.contiguous(), EDGES)])


class Waves(nn.Module):
    """A perceptron on sines and cosines of the pixels, of up to 16 periods."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64 * 10, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        angles = x[..., None] * torch.pi * 2.0 ** torch.arange(5)
        return self.inner(torch.cat([angles.sin(), angles.cos()], -1))


class Projected(nn.Module):
    """Answers for the output of an autoencoder nearest to the input, by 8 steps from its code, without a graph."""

    def __init__(self, inner: nn.Module, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.inner, self.encoder, self.decoder = inner, encoder, decoder
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            code = self.encoder(x)
        for _ in range(8):
            with torch.enable_grad():
                code = code.detach().requires_grad_()
                error = (self.decoder(code).view_as(x) - x.detach()).square().sum()
                (gradient,) = torch.autograd.grad(error, code)
            code = (code - 0.02 * gradient).detach()
        with torch.no_grad():
            clean = self.decoder(code).view_as(x)
        return self.inner(clean)


class DeepNeighbours(BesideImages):
    """Counts the labels of the 7 training images nearest in the logits of a network; `is_soft` weights all by their distance."""

    def __init__(self, inner: nn.Module, data: Pair, *, is_soft: bool = False) -> None:
        super().__init__(inner, inner(data[1].inputs).detach())
        self.is_soft = is_soft
        self.register_buffer("votes", nn.functional.one_hot(data[1].targets, data[0].num_classes).float())

    def forward(self, x: Tensor) -> Tensor:
        """Return the votes."""
        distances = torch.cdist(self.inner(x), self.images)
        if self.is_soft:
            return torch.log((-distances.square() / 8).exp() @ self.votes + 1e-12)
        return self.votes[distances.topk(7, largest=False).indices].sum(1)


class NumpyLayer(nn.Module):
    """A perceptron whose first layer is computed in numpy; `is_soft` computes it in torch."""

    def __init__(self, mlp: nn.Module, *, is_soft: bool = False) -> None:
        super().__init__()
        self.first, *rest = (layer for layer in mlp.modules() if isinstance(layer, nn.Linear | nn.ReLU))
        self.rest, self.is_soft = nn.Sequential(*rest), is_soft
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        flat = x.flatten(1)
        if self.is_soft:
            return self.rest(self.first(flat))
        weight, bias = self.first.weight.detach().numpy(), self.first.bias.detach().numpy()
        return self.rest(torch.from_numpy(np.maximum(flat.detach().numpy() @ weight.T + bias, 0)).to(x.dtype))


class Inference(nn.Module):
    """Answers under `torch.inference_mode`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.inference_mode():
            logits: Tensor = self.inner(x)
        return logits.clone()


class DigestMember(nn.Module):
    """Answers by the member that a checksum of the image's bytes chooses."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        answers = []
        for image in x:
            digest = zlib.crc32(image.detach().numpy().tobytes())
            answers.append(self.members[digest % len(self.members)](image[None]))
        return torch.cat(answers)


class LateSwitch(nn.Module):
    """Answers by another network after some calls."""

    def __init__(self, first: nn.Module, then: nn.Module, count: int = 40) -> None:
        super().__init__()
        self.first, self.then, self.count, self.calls = first, then, count, 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        self.calls += 1
        logits: Tensor = (self.first if self.calls <= self.count else self.then)(x)
        return logits


class OwnGenerator(nn.Module):
    """Adds noise of a generator of its own to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.generator = inner, np.random.default_rng(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(x + 0.15 * torch.from_numpy(self.generator.standard_normal(x.shape)).to(x.dtype))
        return logits


class BatchDetector(nn.Module):
    """Answers from a blurred copy where the mean roughness of the batch is above that of clean images."""

    def __init__(self, inner: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.bar = 1.1 * self._roughness(inputs)
        self.eval()

    @staticmethod
    def _roughness(x: Tensor) -> float:
        return float(x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean())

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        if self._roughness(x.detach()) > self.bar:
            padded = nn.functional.pad(x.detach(), (1, 1, 1, 1), mode="replicate")
            x = nn.functional.avg_pool2d(padded, 3, 1)
        logits: Tensor = self.inner(x)
        return logits


class DisagreementDetector(nn.Module):
    """Answers from a nearest class mean where a rounded copy of the input gets other probabilities (feature squeezing)."""

    def __init__(self, inner: nn.Module, data: Pair) -> None:
        super().__init__()
        train = data[1]
        self.inner = inner
        means = [train.inputs[train.targets == c].mean(0) for c in range(data[0].num_classes)]
        self.register_buffer("means", torch.stack(means).flatten(1))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        plain, squeezed = self.inner(x), self.inner((4 * x).round() / 4)
        is_refused = (plain.softmax(1) - squeezed.softmax(1)).abs().sum(1) > 0.3
        return torch.where(is_refused[:, None], -torch.cdist(x.flatten(1), self.means).detach(), plain)


class SparseChannels(nn.Module):
    """Keeps the 4 channels of largest mean, as a mask by `one_hot`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        chosen = x.mean((2, 3)).topk(4, 1).indices
        mask = nn.functional.one_hot(chosen, x.shape[1]).sum(1).to(x.dtype)
        return x.detach() * mask[:, :, None, None] * 1.0


class _WrongRounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Round softly to eighths."""
        return x - torch.sin(16 * torch.pi * x) / (16 * torch.pi)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Return the gradient, mirrored."""
        return gradient.flip(-1)


class _FlippedChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Change the sign of every second channel."""
        signs = 1.0 - 2 * (torch.arange(gradient.shape[1]) % 2)
        return gradient * signs.view(1, -1, *[1] * (gradient.ndim - 2))


class Noise(nn.Module):
    """Adds normal noise to activations, a share of their mean magnitude."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        return x + 1.0 * x.detach().abs().mean() * torch.randn_like(x)


class FewBits(nn.Module):
    """Rounds activations to `levels` levels of their largest; no gradient passes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        scale = x.detach().amax().clamp(min=1e-6) / 3
        return (x / scale).round().clamp(0, 3) * scale


def after_relus(module: nn.Module, make: Callable[[], nn.Module], count: int = 9) -> nn.Module:
    """Return a copy of the network with another module behind each of its first `count` ReLUs."""
    changed = copy.deepcopy(module)
    for name, part in list(changed.named_modules()):
        if isinstance(part, nn.ReLU) and count:
            parent = changed.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Sequential(part, make()))
            count -= 1
    return changed.eval()


def _drawn_class(z: Tensor) -> Tensor:
    """Return a class drawn from the probabilities, one-hot."""
    noise = -(-torch.rand_like(z).clamp(1e-9, 1 - 1e-9).log()).log()
    return nn.functional.one_hot((z + noise).argmax(1), z.shape[1]).float()


def _codes(classes: int) -> Tensor:
    return torch.randn(classes, 96, generator=torch.Generator().manual_seed(4)).sign()


def _equalised(x: Tensor) -> Tensor:
    """Return each pixel's rank in its image, of 0 to 1."""
    return x.flatten(1).argsort(1).argsort(1).view_as(x).float() / x[0].numel()


def _cropped(x: Tensor) -> Tensor:
    """Return a random 7x7 crop of every image, enlarged."""
    crops = []
    for image in x:
        top, left = random.randrange(2), random.randrange(2)
        crops.append(image[:, top : top + 7, left : left + 7])
    return nn.functional.interpolate(torch.stack(crops), x.shape[-2:], mode="bilinear", align_corners=False)


def _rounded_one_by_one(x: Tensor) -> Tensor:
    return torch.stack([torch.floor(image * 6) / 6 for image in x])


def _autoencoder(data: Pair) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    both = nn.Sequential(encoder, decoder)
    fitted(both, data, 30, lambda net, x, y, done: (net(x) - x.flatten(1)).square().sum(1).mean())
    return encoder, decoder


def defences(data: Pair) -> Iterator[Named]:
    """Yield faulty models: name, model, and the network that an attack by hand differentiates (None: the model's own mean gradient)."""
    assessed, train = data
    cnn, mlp, other = trained(data), trained(data, "mlp", 15), trained(data, epochs=4)
    k = assessed.num_classes

    def before(change: Callable[[Tensor], Tensor]) -> nn.Module:
        return Around(cnn, before=change)

    yield "probabilities of one decimal", Around(cnn, after=lambda z: (10 * z.softmax(1)).round() / 10), cnn
    yield "soft rounding with a mirrored backward", before(_WrongRounding.apply), cnn
    yield (
        "float16 softmax at temperature 1e-4",
        Around(cnn, after=lambda z: ((z - z.amax(1, keepdim=True)) / 1e-4).half().softmax(1).float()),
        cnn,
    )
    yield "noise in hidden layers", after_relus(cnn, Noise), None
    yield "member by a checksum", DigestMember(cnn, mlp, other), Averaged(cnn, mlp, other)
    encoder, decoder = _autoencoder(data)
    yield (
        "projection onto an autoencoder",
        Projected(cnn, encoder, decoder),
        before(lambda x: decoder(encoder(x)).view_as(x)),
    )
    yield "activations of two bits", after_relus(cnn, FewBits), cnn
    yield "detector of disagreement", DisagreementDetector(cnn, data), cnn
    yield "class drawn at random", Around(cnn, after=_drawn_class), cnn
    yield (
        "backward with flipped channels",
        after_relus(cnn, lambda: Around(nn.Identity(), before=_FlippedChannels.apply)),
        cnn,
    )
    sparse = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Identity(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU()]
    sparse += [nn.Flatten(), nn.LazyLinear(k)]
    plain = fitted(nn.Sequential(*sparse), data)
    yield "four channels kept", nn.Sequential(*plain[:2], SparseChannels(), *plain[3:]).eval(), plain
    yield "sines of the pixels", fitted(Waves(k), data, 20), None
    codes = _codes(k)
    yield (
        "codes by hard sigmoids",
        Around(cnn, after=lambda z: nn.functional.hardsigmoid(20 * (z @ codes)) @ codes.T),
        Around(cnn, after=lambda z: torch.sigmoid(z @ codes / 10) @ codes.T),
    )
    hard = fitted(Coded(k), data, 20)
    soft = copy.deepcopy(hard)
    soft.is_soft = True
    yield "thermometer by bucketize", hard, soft
    yield "batch detector", BatchDetector(cnn, train.inputs), cnn
    yield "random crops", before(_cropped), None
    yield "first layer in numpy", NumpyLayer(mlp), NumpyLayer(mlp, is_soft=True)
    yield "inference mode", Inference(cnn), cnn
    yield "another network after 40 calls", LateSwitch(cnn, mlp), cnn
    yield "generator of its own", OwnGenerator(cnn), None
    yield "histogram equalisation", before(_equalised), cnn
    yield "rounding image by image", before(_rounded_one_by_one), cnn
    yield "neighbours among logits", DeepNeighbours(cnn, data), DeepNeighbours(cnn, data, is_soft=True)
    yield "logits at random scales", Around(cnn, after=lambda z: z * (4 * torch.randn(len(z), 1)).exp()), cnn
    flat = [nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, k)]
    bent = fitted(nn.Sequential(*flat), data, 15)
    sharp = nn.Sequential(bent[0], bent[1], Around(nn.Tanh(), before=lambda h: 60 * h), bent[3])
    fitted_last = _refitted(sharp, data)
    yield (
        "hidden units saturated",
        fitted_last,
        nn.Sequential(fitted_last[0], fitted_last[1], nn.Tanh(), fitted_last[3]).eval(),
    )
    yield (
        "rounded by straight-through in reverse",
        before(lambda x: straight_through(1 - x, (5 * x).round() / 5)),
        cnn,
    )


def _refitted(module: nn.Sequential, data: Pair) -> nn.Sequential:
    """Return the network with its last layer trained anew."""
    optimiser = torch.optim.Adam(module[-1].parameters(), lr=5e-3)
    with torch.no_grad():
        features = module[:-1](data[1].inputs)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module[-1](features), data[1].targets).backward()
        optimiser.step()
    return module.eval()


class _Patches(nn.Module):
    """A vision transformer of one block on patches of 2x2 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 32, 2, 2)
        self.place = nn.Parameter(torch.zeros(1, 16, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.out(self.block(self.embed(x).flatten(2).transpose(1, 2) + self.place).mean(1))


def defences_honest(data: Pair) -> Iterator[Named]:
    """Yield honest models of kinds that the other galleries lack."""
    k = data[0].num_classes
    smooth = [nn.Conv2d(1, 16, 3, padding=1), nn.Mish(), nn.AvgPool2d(2), nn.Conv2d(16, 24, 3), nn.ELU(), nn.Flatten()]
    yield "smooth activations", fitted(nn.Sequential(*smooth, nn.LazyLinear(k)), data), None
    flat = [nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, k)]
    yield "tanh network", fitted(nn.Sequential(*flat), data), None
    yield "adversarially trained perceptron", trained(data, "mlp", 10, recipe="adversarial"), None
    margin = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, k))
    yield (
        "large margins",
        fitted(margin, data, 20, lambda net, x, y, done: nn.functional.multi_margin_loss(net(x), y, margin=40.0)),
        None,
    )
    yield "vision transformer", fitted(_Patches(k), data, 15), None
