"""Honest runs off the beaten path: what no check may call invalid (a warning is allowed where something is worth a look)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from benchmarks.gallery import masks
from benchmarks.gallery.case import NAIVE, Case, subject_with
from benchmarks.gallery.faulty import CROWN, L0, L1, L2, LINF, PGDL2, SPARSE, WIDE
from benchmarks.gallery.honest import Averaged, Pair, coloured, digits, fitted, larger, provable, shapes, trained
from benchmarks.gallery.unseen import Neighbours
from windtunnel.boundary.data.load import load_dataset
from windtunnel.core.contracts import Capability
from windtunnel.core.dataset import Dataset
from windtunnel.params.data import Data

FASHION = Path(__file__).parents[3] / "shared/data/fashion_mnist"
ASCENT: Mapping[str, object] = {"library": "function", "algorithm": "benchmarks.gallery.own_attacks:gradient_ascent"}
SQUARE: Mapping[str, object] = {"library": "torchattacks", "algorithm": "Square", "budget": {"steps": 500}}

# Losses that do not depend on the scale of the logits.
SCALE_FREE: Mapping[str, object] = {
    "dlr": {"library": "torchattacks", "algorithm": "APGD", "params": {"loss": "dlr"}, "budget": {"steps": 30}},
    "fab": {"library": "torchattacks", "algorithm": "FAB", "budget": {"steps": 20}},
}


class SoftVote(nn.Module):
    """The logarithm of the mean probability of several networks: its cross entropy saturates where all are sure."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The log probabilities."""
        return torch.stack([member(x).softmax(1) for member in self.members]).mean(0).clamp(min=1e-12).log()


def honest_runs(n: int = 60) -> Iterator[Case]:
    """Yield all of them; that of Fashion-MNIST only where its files are beside the repository."""
    data = digits(n)
    cnn, mlp = trained(data), trained(data, "mlp", 15)
    robust = trained(data, recipe="adversarial", epochs=6)

    def case(name: str, module: nn.Module, pair: Pair = data, **run: object) -> Case:
        return Case(name, subject_with(module, pair[0]), pair[1], run)

    vote = SoftVote(cnn, mlp, trained(data, "mlp", 25))
    standard = {"standard": {"library": "windtunnel", "algorithm": "standard"}}
    yield case("soft vote of three networks", vote, attacks={**NAIVE, **standard})
    yield case(
        "soft vote of sharp networks", SoftVote(*(nn.Sequential(m, _Times(8)) for m in (cnn, mlp))), attacks=NAIVE
    )
    yield case("PGD in L2 on an undefended network", cnn, budget=L2, attacks={"pgd": PGDL2})
    yield case("PGD in L2 on a robust network", robust, budget=L2, attacks={"pgd": {**PGDL2, "restarts": 2}})
    sparse = {"pgd": {**SPARSE, "budget": {"steps": 60}, "restarts": 3}}
    yield case("descent in L1 on an undefended network", cnn, budget=L1, attacks=sparse)
    two = {"pgd": PGDL2, "foolbox": {"library": "foolbox", "algorithm": "L2PGD", "budget": {"steps": 40}}}
    yield case("soft vote in L2", vote, budget=L2, attacks=two)
    averaged = {"library": "torchattacks", "algorithm": "PGD", "budget": {"steps": 20, "step_size": 0.02}, "eot": 10}
    yield case("noise at inference under EoT", masks.noisy(cnn, 0.05), attacks={"pgd": averaged})
    yield case("PGD and CROWN on a provable network", provable(data), attacks=NAIVE, verification={"crown": CROWN})
    yield case("own attack without a fault", cnn, attacks={"own": ASCENT})
    yield case("own attack without a fault, L2", robust, budget=L2, attacks={"own": ASCENT})
    yield case("CROWN alone on a provable network", provable(data), attacks={}, verification={"crown": CROWN})
    yield case(
        "CROWN alone on an undefended network",
        mlp,
        attacks={},
        verification={"crown": {**CROWN, "budget": {"epsilon": 0.02}}},
    )
    yield case("one sample", cnn, _first(data, 1), attacks=NAIVE)
    yield case("seven samples", robust, _first(data, 7), attacks=NAIVE)
    drawn = shapes(max(n, 60))
    yield case("every sample right", trained(drawn, epochs=6), drawn, attacks=NAIVE)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    yield case("a linear model", fitted(linear, data, 20), attacks=NAIVE)
    pair = _two_classes(n)
    yield case("two classes", trained(pair, "mlp", 10), pair, attacks=NAIVE)
    rows = _tabular(n)
    layers = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
    yield case("tabular data", fitted(layers, rows, 40), rows, attacks=NAIVE)
    blind = subject_with(cnn, data[0])
    blind = replace(blind, classifier=replace(blind.classifier, capabilities=frozenset({Capability.FORWARD})))
    yield Case(
        "a model without gradients under Square", blind, data[1], {"budget": WIDE, "attacks": {"square": SQUARE}}
    )
    few = {
        "standard": {
            "library": "windtunnel",
            "algorithm": "standard",
            "samples": {"n": max(1, n // 3), "selection": "random"},
        }
    }
    yield case("strong attacks on a third of the samples", robust, budget=LINF, attacks=few)
    fmn = {"library": "foolbox", "algorithm": "L0FMNAttack", "budget": {"steps": 200}}
    yield case("minimum norm in L0", robust, budget=L0, attacks={"fmn": fmn})
    grid = {"library": "transformations", "algorithm": "grid"}
    yield case("a grid of rotations", cnn, budget={"rotation": 20}, attacks={"grid": grid})
    yield case("weights of 8 bits", _in_8_bits(cnn), attacks=NAIVE)
    big = larger(data)
    yield case("a network behind a resize", masks.Around(cnn, before=_halved), big, budget=LINF, attacks=NAIVE)
    wider = {**NAIVE["pgd"], "budget": {"epsilon": 0.2, "steps": 30, "step_size": 0.02}}  # type: ignore[dict-item]
    two_budgets = {"pgd": NAIVE["pgd"], "wide": wider}
    yield case("two budgets and CROWN", provable(data), attacks=two_budgets, verification={"crown": CROWN})
    colour = coloured(data)
    layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
    apgd = {"library": "torchattacks", "algorithm": "APGD", "budget": {"steps": 30}}
    yield case("colour images under APGD", fitted(layers, colour), colour, attacks={"apgd": apgd})
    if FASHION.is_dir():
        worn = _fashion(n)
        yield case("the labels of Fashion-MNIST", trained(worn, "mlp", 6), worn, attacks=NAIVE)


def further_honest(n: int = 60) -> Iterator[Case]:
    """Yield more of them: losses, layers and budgets that checks may mistake for a fault."""
    data = digits(n)
    assessed, train = data
    cnn, robust = trained(data), trained(data, recipe="adversarial", epochs=6)
    n, d, k = len(assessed), 64, 10

    def case(name: str, module: nn.Module, pair: Pair = data, **run: object) -> Case:
        return Case(name, subject_with(module, pair[0]), pair[1], run)

    many = 3 * n
    pool, _ = digits(many)
    zeros_first = (pool.targets != 0).long().argsort(stable=True)
    unbalanced = pool.subset(torch.cat([zeros_first[: n // 4], zeros_first[-(n // 6) :]]).sort().values)
    yield case("unbalanced classes", cnn, (unbalanced, train), attacks=NAIVE)
    squared = nn.Sequential(nn.Flatten(), nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, k))
    yield case("trained on squared errors", fitted(squared, data, 25, _squared), attacks={**NAIVE, **SCALE_FREE})
    yield case("logits of a hundredth", nn.Sequential(cnn, _Times(0.01)), attacks={**NAIVE, **SCALE_FREE})
    contracting = nn.Sequential(nn.Flatten(), _Contracting(d, 64), nn.ReLU(), _Contracting(64, k))
    module = fitted(contracting, data, 30, _sharp)
    yield case(
        "layers of Lipschitz constant 1, L2", module, budget={"norm": "L2", "epsilon": 0.3}, attacks={"pgd": PGDL2}
    )
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, k)]
    yield case("batch norm in L2", fitted(nn.Sequential(*layers), data), budget=L2, attacks={"pgd": PGDL2})
    yield case("a budget that breaks everything", robust, budget={"norm": "Linf", "epsilon": 0.5}, attacks=NAIVE)
    drawn = shapes(max(n, 60))
    tiny = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 4))
    yield case(
        "a tiny network of 99 %",
        fitted(tiny, drawn, 20),
        drawn,
        budget={"norm": "Linf", "epsilon": 0.05},
        attacks=NAIVE,
    )
    yield case("a normalised network in a wrapper", masks.Around(cnn, before=lambda x: (x - 0.0) / 1.0), attacks=NAIVE)
    members = (cnn, trained(data, "mlp", 15), robust)
    hard_vote = {"square": {**SQUARE}, "pgd": NAIVE["pgd"]}
    yield case("mean of three networks", Averaged(*members), budget=WIDE, attacks=hard_vote)
    kernel = Neighbours(train.inputs, train.targets, k, 1.0)
    yield case("kernel density of the training images", kernel, attacks=NAIVE)
    noisy = trained(data, recipe="noise")
    yield case("many random restarts, L2", noisy, budget=L2, attacks={"pgd": {**PGDL2, "restarts": 3}})


def _halved(x: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(x, 2)


def _in_8_bits(module: nn.Module) -> nn.Module:
    """Return a copy whose weights are multiples of a 127th of the largest of each tensor."""
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for weights in copied.parameters():
            step = weights.abs().max() / 127
            weights.copy_((weights / step).round() * step)
    return copied


def _squared(net: nn.Module, x: Tensor, y: Tensor, done: float) -> Tensor:
    return nn.functional.mse_loss(net(x), nn.functional.one_hot(y, 10).float())


def _sharp(net: nn.Module, x: Tensor, y: Tensor, done: float) -> Tensor:
    return nn.functional.cross_entropy(10 * net(x), y)


class _Contracting(nn.Linear):
    """A linear layer divided by its largest singular value."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's value."""
        return nn.functional.linear(x, self.weight / torch.linalg.matrix_norm(self.weight, 2), self.bias)


class _Times(nn.Module):
    """Multiply logits by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor) -> Tensor:
        """The scaled logits."""
        return self.factor * logits


def _first(data: Pair, n: int) -> Pair:
    return data[0].subset(torch.arange(n)), data[1]


def _two_classes(n: int) -> Pair:
    """Threes and eights."""

    def only(part: Dataset, most: int) -> Dataset:
        rows = ((part.targets == 3) | (part.targets == 8)).nonzero().flatten()[:most]
        chosen = part.subset(rows)
        return replace(chosen, targets=(chosen.targets == 8).long(), class_names=("three", "eight"))

    assessed, train = digits(min(400, 6 * n))
    return only(assessed, n), only(train, len(train))


def _tabular(n: int) -> Pair:
    """Breast cancer: 30 features, each scaled to [0, 1]."""
    table = load_breast_cancer()
    features = torch.tensor(table.data).float()
    features = (features - features.amin(0)) / (features.amax(0) - features.amin(0))
    labels = torch.tensor(table.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))

    def part(rows: Tensor) -> Dataset:
        ids, names = tuple(f"row-{i}" for i in rows.tolist()), ("malignant", "benign")
        metadata = {"source": "breast cancer", "samples": {"of": len(labels), "n": len(rows)}}
        return Dataset(features[rows], labels[rows], ids, names, metadata=metadata)

    return part(order[:n]), part(order[n:])


def _fashion(n: int) -> Pair:
    def part(which: str, most: int) -> Dataset:
        images, labels = (f"{FASHION}/{which}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        return load_dataset(
            Data(source="idx", path=images, labels=labels, samples={"n": most, "selection": "random"}), 0
        )[0]

    return part("t10k", n), part("train", 3000)
