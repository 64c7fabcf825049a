"""Defences of the literature that fell to adapted attacks, with the network that an attack by hand differentiates, and honest models.

Athalye et al. 2018, arXiv 1802.00420; Tramer et al. 2020, arXiv 2002.08347; Carlini et al. 2025, arXiv 2503.01811 (AutoAdvExBench).
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from sklearn.ensemble import RandomForestClassifier
from sklearn.svm import SVC
from torch import Tensor, nn

from benchmarks.gallery.honest import Averaged, Pair, fitted, trained
from benchmarks.gallery.masks import Around, BesideImages, straight_through
from benchmarks.gallery.unseen import Named, Votes

Images = np.ndarray


def outside(change: Callable[[Images], Images]) -> Callable[[Tensor], Tensor]:
    """Return a function of tensors that computes in numpy, without a graph."""
    return lambda x: torch.from_numpy(np.ascontiguousarray(change(x.detach().cpu().numpy()))).to(x.dtype)


def jpeg_by_pillow(x: Tensor) -> Tensor:
    """JPEG files of quality 60, written and read (Das et al. 2018, arXiv 1802.06816)."""
    pictures = []
    for image in x.detach():
        file = io.BytesIO()
        Image.fromarray((image[0] * 255).round().byte().numpy()).save(file, "JPEG", quality=60)
        pictures.append(torch.from_numpy(np.array(Image.open(file))).float() / 255)
    return torch.stack(pictures)[:, None]


def quilting(train: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces each 2x2 patch by the nearest of 2000 of training images (Guo et al. 2018, arXiv 1711.00117)."""
    patches = nn.functional.unfold(train, 2, stride=2).transpose(1, 2).reshape(-1, 4)
    patches = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))[:2000]]

    def quilt(x: Tensor) -> Tensor:
        own = nn.functional.unfold(x, 2, stride=2).transpose(1, 2)
        nearest = torch.cdist(own, patches[None]).argmin(2)
        return nn.functional.fold(patches[nearest].transpose(1, 2), x.shape[-2:], 2, stride=2)

    return quilt


def pixel_defend(train: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that moves each pixel to the likeliest of the levels near it, one after another (Song et al. 2018, 1710.10766)."""
    levels = 9
    grid = (train[:, 0] * (levels - 1)).round().long().numpy()
    counts = np.ones((levels, levels))  # of a pixel given its left neighbour
    np.add.at(counts, (grid[:, :, :-1].ravel(), grid[:, :, 1:].ravel()), 1)

    def purify(images: Images) -> Images:
        moved = images.copy()
        for column in range(1, images.shape[-1]):
            given = np.clip(np.rint(moved[..., column - 1] * (levels - 1)), 0, levels - 1).astype(int)
            near = moved[..., column, None] + np.array([-0.1, -0.05, 0.0, 0.05, 0.1])
            choices = np.clip(np.rint(near * (levels - 1)), 0, levels - 1).astype(int)
            best = counts[given[..., None], choices].argmax(-1)
            moved[..., column] = np.take_along_axis(near, best[..., None], -1)[..., 0].clip(0, 1)
        return moved

    return outside(purify)


def total_variation_of_kept(images: Images) -> Images:
    """Drop a fifth of the pixels, and fill and smooth by steps towards less total variation (Guo et al. 2018)."""
    kept = (torch.rand(images.shape) > 0.2).numpy()
    moved = np.where(kept, images, images.mean())
    for _ in range(30):
        mean = ndimage.uniform_filter(moved, (1, 1, 3, 3), mode="nearest")
        moved = np.where(kept, 0.85 * images + 0.15 * mean, mean)
    return moved.astype(images.dtype)


def halftone(images: Images) -> Images:
    """Error diffusion to 4 levels along each row."""
    moved, error = np.empty_like(images), np.zeros_like(images[..., 0])
    for column in range(images.shape[-1]):
        wanted = images[..., column] + error
        moved[..., column] = np.rint(np.clip(wanted, 0, 1) * 3) / 3
        error = wanted - moved[..., column]
    return moved


def haar_shrunk(images: Images) -> Images:
    """Soft-threshold the details of Haar wavelets (Prakash et al. 2018, arXiv 1801.08926)."""
    a, b, c, d = images[..., ::2, ::2], images[..., ::2, 1::2], images[..., 1::2, ::2], images[..., 1::2, 1::2]
    mean, details = (a + b + c + d) / 4, [(a - b + c - d) / 4, (a + b - c - d) / 4, (a - b - c + d) / 4]
    h, v, g = (np.sign(detail) * np.maximum(np.abs(detail) - 0.04, 0) for detail in details)
    moved = np.empty_like(images)
    moved[..., ::2, ::2], moved[..., ::2, 1::2] = mean + h + v + g, mean - h + v - g
    moved[..., 1::2, ::2], moved[..., 1::2, 1::2] = mean + h - v - g, mean - h - v + g
    return moved


def rotated(images: Images) -> Images:
    """Rotate all by a random angle of up to 12 degrees."""
    angle = float(24 * torch.rand(()) - 12)
    return ndimage.rotate(images, angle, axes=(-1, -2), reshape=False, order=1).astype(images.dtype)


def masked_low_rank(x: Tensor) -> Tensor:
    """Drop 30 % of the pixels at random and keep 4 singular values (ME-Net, Yang et al. 2019, arXiv 1905.11971)."""
    mask = (torch.rand_like(x) > 0.3).float()
    u, s, v = torch.linalg.svd((x * mask).detach() / 0.7)
    return u[..., :4] @ torch.diag_embed(s[..., :4]) @ v[..., :4, :]


def barrage(x: Tensor) -> Tensor:
    """Three random changes out of six, each of random strength (Raff et al. 2019)."""
    strength = float(torch.rand(()))
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda t: t + 0.1 * strength * torch.randn_like(t),
        lambda t: (t * (4 + 8 * strength)).round() / (4 + 8 * strength),
        lambda t: 0.8 * t + 0.2 * nn.functional.avg_pool2d(t, 3, 1, 1),
        lambda t: t.clamp(min=1e-3) ** (0.7 + 0.6 * strength),
        lambda t: (t - t.mean((-1, -2), keepdim=True)) * (0.8 + 0.4 * strength) + t.mean((-1, -2), keepdim=True),
        lambda t: t * (torch.rand_like(t) > 0.05 * strength),
    ]
    for at in torch.randperm(len(changes))[:3].tolist():
        x = changes[at](x)
    return x


class StochasticPruning(nn.Module):
    """Keeps activations drawn in proportion to their magnitude, rescaled (Dhillon et al. 2018, arXiv 1803.01442)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        flat = x.flatten(1)
        shares = flat.detach().abs() + 1e-8
        shares = shares / shares.sum(1, keepdim=True)
        draws = flat.shape[1] // 2
        drawn = torch.multinomial(shares, draws, replacement=True)
        kept = torch.zeros_like(flat).scatter(1, drawn, 1.0)
        return (flat * kept / (1 - (1 - shares) ** draws).clamp(min=1e-6)).view_as(x)


def with_pruning(cnn: nn.Module) -> nn.Module:
    """Return a copy with `StochasticPruning` behind every ReLU."""
    pruned = copy.deepcopy(cnn)
    for parent in list(pruned.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Sequential(child, StochasticPruning()))
    return pruned.eval()


class MixupInference(BesideImages):
    """Mean logits over mixtures with random training images (Pang et al. 2020, arXiv 1909.11515)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits = []
        for _ in range(10):
            other = self.images[torch.randint(len(self.images), (len(x),))]
            logits.append(self.inner(0.6 * x + 0.4 * other))
        return torch.stack(logits).softmax(2).mean(0)


class Langevin(nn.Module):
    """Walks to lower energy with noise before it answers, without a graph (Hill et al. 2021, arXiv 2005.13525)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        y = x.detach().clone()
        for _ in range(8):
            with torch.enable_grad():
                point = y.clone().requires_grad_()
                (slope,) = torch.autograd.grad(self.inner(point).logsumexp(1).sum(), point)
            y = (y + 0.002 * slope + 0.02 * torch.randn_like(y)).clamp(0, 1)
        return self.inner(y)


class Squeezing(nn.Module):
    """Answers for a squeezed copy where its probabilities differ from the input's (Xu et al. 2018, arXiv 1704.01155)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with torch.no_grad():
            squeezed = self.inner((nn.functional.avg_pool2d(x, 3, 1, 1) * 0.3 + 0.7 * x).mul(4).round() / 4)
        plain = self.inner(x)
        is_odd = (plain.softmax(1) - squeezed.softmax(1)).abs().sum(1, keepdim=True) > 0.4
        return torch.where(is_odd, squeezed, plain)


class WeaknessAsStrength(nn.Module):
    """Refuses, by the mean of noisy copies, what is unstable or far from a boundary (Hu et al. 2019, arXiv 1910.07629)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        plain = self.inner(x)
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            loss = nn.functional.cross_entropy(self.inner(point), plain.detach().argmax(1), reduction="sum")
            (slope,) = torch.autograd.grad(loss, point)
        with torch.no_grad():
            noisy = torch.stack([self.inner(x + 0.1 * torch.randn_like(x)).softmax(1) for _ in range(4)]).mean(0)
            stepped = self.inner(x + 0.05 * slope.sign()).argmax(1)
        is_refused = (noisy - plain.softmax(1)).abs().sum(1) > 0.6
        is_refused |= stepped != plain.argmax(1)
        return torch.where(is_refused[:, None], (noisy + 1e-6).log(), plain)


class Codebook(nn.Module):
    """Replaces 2x2 patches of activations by the nearest of 64 codes (vector quantisation); `is_soft` passes gradients straight through."""

    def __init__(self, codes: Tensor, *, is_soft: bool = False) -> None:
        super().__init__()
        self.is_soft = is_soft
        self.register_buffer("codes", codes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantised activations."""
        flat = x.view(*x.shape[:1], -1, self.codes.shape[1])
        chosen = nn.functional.embedding(torch.cdist(flat, self.codes[None]).argmin(-1), self.codes).view_as(x)
        return straight_through(x, chosen) if self.is_soft else chosen


def coded(mlp: nn.Module, inputs: Tensor) -> tuple[nn.Module, nn.Module]:
    """Return a perceptron with a codebook of its own activations after its first ReLU, and the differentiable one."""
    layers = [layer for layer in mlp.modules() if not list(layer.children()) and not isinstance(layer, nn.Dropout)]
    at = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.ReLU)) + 1
    with torch.no_grad():
        seen = nn.Sequential(*layers[:at])(inputs[:400]).reshape(-1, 4)
    codes = seen[torch.randperm(len(seen), generator=torch.Generator().manual_seed(0))[:256]]
    hard, soft = (nn.Sequential(*layers[:at], Codebook(codes, is_soft=s), *layers[at:]).eval() for s in (False, True))
    return hard, soft


class _NoisyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Return noise."""
        return torch.randn_like(gradient)


class MovingTarget(nn.Module):
    """Answers by its members in turn (moving target defence)."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members, self.calls = nn.ModuleList(members), 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        self.calls += 1
        logits: Tensor = self.members[self.calls % len(self.members)](x)
        return logits


class Equilibrium(nn.Module):
    """A fixed point found without a graph, then one step with it (deep equilibrium with a phantom gradient); `is_unrolled` keeps all."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.enter, self.step, self.out = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, classes)
        self.is_unrolled = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        entered, z = self.enter(x.flatten(1)), x.new_zeros(len(x), 48)
        with torch.set_grad_enabled(self.is_unrolled and torch.is_grad_enabled()):
            for _ in range(8):
                z = torch.tanh(0.5 * self.step(z) + entered)
        return self.out(torch.tanh(0.5 * self.step(z) + (entered if self.is_unrolled else entered.detach())))


class Hamming(nn.Module):
    """Answers by the Hamming distance of 128 signs of features to those of the classes; `is_soft` takes tanh in place of signs."""

    def __init__(self, mlp: nn.Module, data: Pair, *, is_soft: bool = False) -> None:
        super().__init__()
        train, k = data[1], data[0].num_classes
        self.inner, self.is_soft = mlp, is_soft
        self.register_buffer("planes", torch.randn(k, 128, generator=torch.Generator().manual_seed(2)))
        with torch.no_grad():
            signs = (mlp(train.inputs) @ self.planes).sign()
        self.register_buffer("codes", torch.stack([signs[train.targets == c].mean(0).sign() for c in range(k)]))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        z = self.inner(x) @ self.planes
        if self.is_soft:
            return torch.tanh(z / 5) @ self.codes.T
        return -((z > 0)[:, None] ^ (self.codes > 0)).sum(2).float()


class Forest(nn.Module):
    """A random forest of scikit-learn on the pixels."""

    def __init__(self, data: Pair) -> None:
        super().__init__()
        train = data[1]
        forest = RandomForestClassifier(60, max_depth=9, random_state=0)
        self.forest = forest.fit(train.inputs.flatten(1).numpy(), train.targets.numpy())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities."""
        return torch.from_numpy(self.forest.predict_proba(x.detach().flatten(1).numpy())).to(x.dtype)


class SoftForest(nn.Module):
    """The same forest with a sigmoid at each node."""

    def __init__(self, hard: Forest, width: float = 0.05) -> None:
        super().__init__()
        self.trees, self.width = [tree.tree_ for tree in hard.forest.estimators_], width

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the probabilities."""
        flat, total = x.flatten(1), torch.zeros(())
        for tree in self.trees:
            reach: dict[int, Tensor] = {0: torch.ones(len(flat))}
            for node in range(tree.node_count):
                if tree.children_left[node] < 0:
                    share = torch.from_numpy(tree.value[node][0] / tree.value[node][0].sum()).float()
                    total = total + reach[node][:, None] * share
                    continue
                gate = torch.sigmoid((float(tree.threshold[node]) - flat[:, tree.feature[node]]) / self.width)
                reach[tree.children_left[node]] = reach[node] * gate
                reach[tree.children_right[node]] = reach[node] * (1 - gate)
        return (total / len(self.trees) + 1e-6).log()


class Kernel(nn.Module):
    """A support vector machine of scikit-learn; `is_soft` computes it in torch."""

    def __init__(self, data: Pair, *, is_soft: bool = False) -> None:
        super().__init__()
        train, self.is_soft = data[1], is_soft
        self.machines = []
        for c in range(data[0].num_classes):
            machine = SVC(gamma=0.06).fit(train.inputs.flatten(1).numpy(), (train.targets == c).numpy())
            self.machines.append(machine)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the decisions."""
        if not self.is_soft:
            flat = x.detach().flatten(1).numpy()
            return torch.from_numpy(np.stack([m.decision_function(flat) for m in self.machines], 1)).to(x.dtype)
        decisions = []
        for m in self.machines:
            vectors, weights = (torch.from_numpy(v).float() for v in (m.support_vectors_, m.dual_coef_[0]))
            decisions.append((-0.06 * torch.cdist(x.flatten(1), vectors) ** 2).exp() @ weights + float(m.intercept_[0]))
        return torch.stack(decisions, 1)


class SparseFront(nn.Module):
    """Keeps the signs of the 6 largest of 16 coefficients of each 4x4 block (Bakiskan et al. 2021); `is_soft` keeps the values."""

    def __init__(self, inner: nn.Module, *, is_soft: bool = False) -> None:
        super().__init__()
        self.inner, self.is_soft = inner, is_soft
        basis = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))[0]
        self.register_buffer("basis", basis)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        blocks = nn.functional.unfold(x, 4, stride=4).transpose(1, 2) @ self.basis
        chosen = blocks.abs().topk(10, 2).indices
        mask = torch.zeros_like(blocks).scatter(2, chosen, 1.0)
        if not self.is_soft:
            blocks = (blocks * 4).round() / 4
        back = (blocks * mask) @ self.basis.T
        return self.inner(nn.functional.fold(back.transpose(1, 2), x.shape[-2:], 4, stride=4))


class AlwaysTraining(nn.BatchNorm2d):
    """Batch norm that eval() does not switch off."""

    def train(self, mode: bool = True) -> AlwaysTraining:
        """Stay in training mode."""
        super().train(True)
        return self


def published(data: Pair) -> Iterator[Named]:
    """Yield faulty models: name, model, and the network that an attack by hand differentiates (None: the model's own mean gradient)."""
    assessed, train = data
    cnn, mlp, other = trained(data), trained(data, "mlp", 15), trained(data, epochs=4)
    k = assessed.num_classes

    def before(change: Callable[[Tensor], Tensor]) -> nn.Module:
        return Around(cnn, before=change)

    yield "JPEG files", before(jpeg_by_pillow), cnn
    yield "quilting", before(quilting(train.inputs)), cnn
    yield "PixelDefend", before(pixel_defend(train.inputs)), cnn
    yield "total variation of kept pixels", before(outside(total_variation_of_kept)), cnn
    yield "halftone", before(outside(halftone)), cnn
    yield "Haar shrinkage", before(outside(haar_shrunk)), cnn
    yield "random rotation by scipy", before(outside(rotated)), cnn
    yield (
        "ME-Net",
        before(masked_low_rank),
        before(lambda x: straight_through(x * (mask := (torch.rand_like(x) > 0.3).float()) / 0.7, x * mask / 0.7)),
    )
    yield "barrage of random transforms", before(barrage), cnn
    yield "stochastic activation pruning", with_pruning(cnn), None
    yield "mixup inference", MixupInference(cnn, train.inputs), None
    yield "Langevin purification", Langevin(cnn), cnn
    yield "squeezing with a detector", Squeezing(cnn), cnn
    yield "weakness as strength", WeaknessAsStrength(cnn), cnn
    hard, soft = coded(mlp, train.inputs)
    yield "codebook inside", hard, soft
    yield "backward of noise", before(_NoisyBackward.apply), cnn  # type: ignore[arg-type]
    yield "moving target", MovingTarget(cnn, mlp, other), Averaged(cnn, mlp, other)
    unrolled = fitted(Equilibrium(k), data)
    cut = copy.deepcopy(unrolled)
    cut.is_unrolled = False
    yield "equilibrium without a graph", cut, unrolled
    yield "Hamming codes", Hamming(mlp, data), Hamming(mlp, data, is_soft=True)
    forest = Forest(data)
    yield "random forest", forest, SoftForest(forest)
    yield "support vector machine", Kernel(data), Kernel(data, is_soft=True)
    yield "sparse front end", SparseFront(cnn), SparseFront(cnn, is_soft=True)
    yield "sigmoid of large logits", Around(cnn, after=lambda z: torch.sigmoid(40 * (z - z.amax(1, keepdim=True)))), cnn
    yield "temperature of 1e-3 and a softmax", Around(cnn, after=lambda z: (z / 1e-3).softmax(1)), cnn
    yield "tiny logits in float16", Around(cnn, after=lambda z: (1e-6 * z).half().float()), cnn
    yield "gradient that is not a number", Around(cnn, after=lambda z: z + (0 * z).sqrt()), cnn
    layers = [nn.Conv2d(1, 16, 3, padding=1), AlwaysTraining(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(k)]
    normed = fitted(nn.Sequential(*layers), data)
    yield "batch norm over the batch", normed, None
    yield "votes without a graph", Votes(cnn, lambda x: [(x * n).round() / n for n in (3, 5, 7, 9)]), cnn


class _RowMemory(nn.Module):
    """A gated recurrent network over the rows of the image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.rows, self.out = nn.GRU(8, 48, batch_first=True), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.out(self.rows(x.flatten(1).view(-1, 8, 8))[0][:, -1])


class _Cosine(nn.Module):
    """Cosines of features with prototypes, times 15."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features, self.prototypes = (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU()),
            nn.Linear(64, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        normal = nn.functional.normalize
        return 15 * nn.functional.linear(normal(self.features(x)), normal(self.prototypes.weight))


class _Standardised(nn.Module):
    """A perceptron on images that are standardised by their own mean and deviation, taken without a graph."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.inner((x - x.mean((1, 2, 3), keepdim=True)) / (x.std((1, 2, 3), keepdim=True) + 1e-3))


def published_honest(data: Pair) -> Iterator[Named]:
    """Yield honest models of kinds that the other galleries lack."""
    k = data[0].num_classes
    yield "recurrent rows", fitted(_RowMemory(k), data), None
    yield "cosine prototypes", fitted(_Cosine(k), data), None
    yield "standardised images", fitted(_Standardised(k), data), None
    yield "logarithms of probabilities", Around(trained(data), after=lambda z: z.log_softmax(1)), None
    maxout = [nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2), nn.GroupNorm(4, 16), nn.Softplus()]
    yield "group norm and max pooling", fitted(nn.Sequential(*maxout, nn.Flatten(), nn.LazyLinear(k)), data), None
