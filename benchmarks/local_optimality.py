"""Local optimality of our minimum-norm attacks and of `standard`, beside those of AttackBench's own library.

    python -m benchmarks.local_optimality [--shared ../shared] [--models lenet5,robust-lenet5,resnet20] [--norms Linf,L2,L1,L0] [--n 30]

Needs `pip install attackbenchlib` (2.0.2), which brings wandb and torchvision; nothing is uploaded or downloaded. Local optimality
is computed by that library (Cina et al. 2024, arXiv 2404.19460, eq. 5): (r e0 - A(attack)) / (r e0 - A(envelope)), A the area under
the curve of robust accuracy over [0, e0], r the clean accuracy, e0 the largest distance of the envelope, the smallest distance of each
sample over all attacks of the same table. AttackBench's attacks have 2,000 passes a sample and count by the nearest adversarial
point that they visit; ours count by the example that an entry stores. `standard` has no distance of its own: for each sample
its epsilon is halved SPLITS times.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gallery.case import subject_with
from windtunnel.assessments.attacks.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.architectures import lenet5
from windtunnel.core.contracts import Norm
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget

ROOT = Path(__file__).parents[1]
LIBRARY_PASSES, SPLITS = 2000, 4
LINF, L2, L1, L0 = Norm.LINF, Norm.L2, Norm.L1, Norm.L0
ANY_DISTANCE = {LINF: 1.0, L2: 60.0, L1: 3100.0, L0: 3100.0}  # beyond the distance of any two images of 3x32x32
# library, algorithm and parameters of an entry; steps for about LIBRARY_PASSES passes, where an attack has steps of its own.
OURS: dict[Norm, tuple[tuple[str, str, dict[str, object]], ...]] = {
    LINF: (
        ("torchattacks", "FAB", {"steps": 100, "multi_targeted": True}),
        ("foolbox", "LInfFMNAttack", {"steps": 1000}),
        ("foolbox", "LinfDeepFoolAttack", {}),
    ),
    L2: (
        ("torchattacks", "FAB", {"steps": 100, "multi_targeted": True}),
        ("torchattacks", "CW", {"steps": 1000}),
        ("foolbox", "DDNAttack", {"steps": 1000}),
        ("foolbox", "L2FMNAttack", {"steps": 1000}),
        ("foolbox", "L2CarliniWagnerAttack", {"binary_search_steps": 5, "steps": 200}),
        ("foolbox", "L2DeepFoolAttack", {}),
    ),
    L1: (
        ("torchattacks", "FAB", {"steps": 100, "multi_targeted": True}),
        ("torchattacks", "EADEN", {}),
        ("torchattacks", "EADL1", {}),
        ("foolbox", "L1FMNAttack", {"steps": 1000}),
        ("foolbox", "EADAttack", {"binary_search_steps": 5, "steps": 200}),
    ),
    L0: (("torchattacks", "SparseFool", {}), ("foolbox", "L0FMNAttack", {"steps": 1000})),
}
# Names of attackbench.attacks.original.configs, with the changes of their defaults that a norm asks for.
THEIRS: dict[Norm, tuple[tuple[str, str], ...]] = {
    LINF: (("fmn", "fmn_linf"), ("fab", "fab"), ("tr", "tr"), ("apgd_minimal", "apgd_minimal")),
    L2: (
        *(("fmn", "fmn"), ("fab", "fab"), ("tr", "tr"), ("apgd_minimal", "apgd_minimal")),
        *(("deepfool", "deepfool"), ("superdeepfool", "superdeepfool")),
    ),
    L1: (("fmn", "fmn"), ("fab", "fab"), ("apgd_minimal", "apgd_minimal_l1")),
    L0: (("fmn", "fmn"), ("sigma_zero", "sigma_zero"), ("pgd0_minimal", "pgd0_minimal")),
}


class Normalised(nn.Module):
    """A network of normalised images, of images in [0, 1]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner((x - self.mean) / self.std)
        return logits


def mnist(shared: Path, weights: str) -> tuple[nn.Module, Dataset]:
    """Return a LeNet5 of the shared folder, and MNIST's test images."""
    folder = shared / "data" / "mnist"
    images, labels = (str(folder / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    module = lenet5()
    module.load_state_dict(torch.load(shared / "data" / "models" / weights, map_location="cpu", weights_only=True))
    return module.eval(), load_dataset(Data(source="idx", path=images, labels=labels), 0)[0]


def cifar10(shared: Path) -> tuple[nn.Module, Dataset]:
    """Return ResNet-20 and the lossless images of the shared folder."""
    sys.path.insert(0, str(ROOT / "examples" / "cifar10-resnet20"))
    folder = shared / "data" / "colour" / "cifar10"
    module = import_module("network").ResNet20()
    state = torch.load(folder / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)["state_dict"]
    module.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return Normalised(module), load_dataset(Data(source="npz", path=str(folder / "test.npz")), 0)[0]


MODELS: dict[str, Callable[[Path], tuple[nn.Module, Dataset]]] = {
    "lenet5": lambda shared: mnist(shared, "mnist_lenet5_clntrained.pt"),
    "robust-lenet5": lambda shared: mnist(shared, "mnist_lenet5_advtrained.pt"),
    "resnet20": cifar10,
}


def by_entry(subject: Subject, norm: Norm, library: str, algorithm: str, params: dict[str, object]) -> Any:
    """Return the nearest distance of each sample, 0 where it was wrong before and inf where none was found; and the mean passes."""
    entry = AttackEntry(library=library, algorithm=algorithm, params=params, batch_size=64)
    data = assess("it", entry, Budget(norm=norm, epsilon=ANY_DISTANCE[norm]), subject).data
    is_wrong = data["perturbed_predictions"] != data["targets"]
    distances = torch.where(is_wrong, data["perturbation_distance"], torch.inf).double()
    distances[~subject.clean_correct] = 0.0
    passes = (data["forward_passes"] + data["backward_passes"])[data["attacked"]]
    return distances.numpy(), float(passes.mean())


def by_standard(subject: Subject, norm: Norm, most: float) -> Any:
    """Return for each sample the smallest distance at which `standard` breaks it, by halving its epsilon; and the mean passes."""
    low, high = torch.zeros(len(subject.dataset)), torch.full((len(subject.dataset),), most)
    best, total = torch.full((len(low),), torch.inf), 0.0
    best[~subject.clean_correct] = 0.0
    for split in range(SPLITS):
        epsilons = high if split == 0 else (low + high) / 2
        for epsilon in epsilons[subject.clean_correct].unique().tolist():
            at = (subject.clean_correct & (epsilons == epsilon)).nonzero().flatten()
            entry = AttackEntry(library="windtunnel", algorithm="standard", batch_size=64)
            data = assess("it", entry, Budget(norm=norm, epsilon=epsilon), subject.subset(at)).data
            total += float((data["forward_passes"] + data["backward_passes"]).sum())
            is_broken = data["broken_by"] >= 0
            best[at] = torch.where(is_broken, torch.minimum(best[at], data["perturbation_distance"]), best[at])
            high[at] = torch.where(is_broken, torch.minimum(best[at], torch.tensor(epsilon)), high[at])
            low[at] = torch.where(is_broken, low[at], torch.tensor(epsilon))
    return best.double().numpy(), total / int(subject.clean_correct.sum())


def by_library(subject: Subject, module: nn.Module, norm: Norm, attack: str, config: str) -> Any:
    """Return the nearest distance of each sample that an attack of AttackBench visits, and the mean passes."""
    attackbench: Any = import_module("attackbench")
    configs: Any = import_module("attackbench.attacks.original.configs")
    facts = {**getattr(configs, f"original_{config}")()}
    facts = {key: value for key, value in facts.items() if key not in ("name", "source")}
    if "threat_model" in facts and attack not in ("deepfool", "superdeepfool"):
        facts["threat_model"] = norm.value.lower()
    else:
        facts.pop("threat_model", None)
    loader = DataLoader(TensorDataset(subject.dataset.inputs, subject.dataset.targets), batch_size=64)
    run = getattr(configs, f"get_original_{attack}")(**facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = attackbench.run_attack(
            module, loader, run, norm.value.lower(), torch.device("cpu"), LIBRARY_PASSES, debug=True
        )
    passes = np.array(found["num_forwards"]) + np.array(found["num_backwards"])
    return np.array(found["distances"][norm.value.lower()]), float(passes[subject.clean_correct.numpy()].mean())


def table(name: str, shared: Path, norm: Norm, n: int, *, has_standard: bool) -> None:
    """Print the attacks of one model under one norm, the best first."""
    module, data = MODELS[name](shared)
    chosen = data.subset(torch.arange(n))
    subject = subject_with(module, chosen)
    rows = list[tuple[str, Any, float, float]]()

    def measure(label: str, attack: Callable[[], Any]) -> None:
        started = time.process_time()
        try:
            distances, passes = attack()
        except Exception as error:  # whatever a library raises on this model
            print(f"{name} {norm.value} {label}: {type(error).__name__}: {error}", file=sys.stderr)
            return
        rows.append((label, distances, passes, time.process_time() - started))
        print(f"{name} {norm.value} {label}: {passes:.0f} passes, {rows[-1][3]:.1f} s", file=sys.stderr)

    for library, algorithm, params in OURS[norm]:
        measure(
            f"windtunnel: {library} {algorithm}", lambda a=(library, algorithm, params): by_entry(subject, norm, *a)
        )
    for attack, config in THEIRS[norm]:
        measure(f"AttackBench: {attack}", lambda a=(attack, config): by_library(subject, module, norm, *a))
    if has_standard and norm in (LINF, L2):
        reached = np.minimum.reduce([distances for _, distances, _, _ in rows])
        most = 1.1 * float(reached[np.isfinite(reached)].max())
        measure("windtunnel: standard, epsilon halved", lambda: by_standard(subject, norm, most))
    key = norm.value.lower()
    correct = subject.clean_correct.tolist()
    results = [{"distances": {key: row[1].tolist()}, "correct": correct} for row in rows]
    optimality: Any = import_module("attackbench.metrics.optimality").compute_local_optimality
    scores = [optimality(result, results, key, use_wandb=False)["optimality"] for result in results]
    for score, (label, distances, passes, seconds) in sorted(zip(scores, rows, strict=True), key=lambda pair: -pair[0]):
        is_right = np.array(correct)
        median, missed = np.median(distances[is_right]), int((~np.isfinite(distances)).sum())
        print(
            f"| {name} | {norm.value} | {label} | {100 * score:.1f} | {median:.4g} | {missed} | {passes:.0f} | {seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print a row per model, norm and attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--norms", default="Linf,L2,L1,L0")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument(
        "--without-standard", action="store_true", help="its epsilon is halved for each sample, which is slow"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | norm | attack | local optimality, % | median distance | unbroken | passes | processor s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.models.split(","):
        for norm in options.norms.split(","):
            table(name, options.shared, Norm(norm), options.n, has_standard=not options.without_standard)


if __name__ == "__main__":
    main()
