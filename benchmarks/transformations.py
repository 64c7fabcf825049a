"""Soundness, strength and cost of the certificates of transformations.

    python -m benchmarks.transformations --networks 200          # random networks against dense grids of parameters
    python -m benchmarks.transformations --strength --samples 20  # attacked against certified on three networks, and the seconds
    python -m benchmarks.transformations --angles --samples 20    # what 10,000 angles break of what the attack left
    python -m benchmarks.transformations --patches --samples 100  # the seconds of an attack by patches of 5x5 on CIFAR-10

Soundness: of each region, random networks of random architectures and images certify two samples each; then a grid of `--points`
parameters, half of it drawn at random, must not break what is certified, nor leave the verified part of a range. Of a patch as many
random places with random, black and white contents. Wanted: no contradiction, and more than nothing certified in each row.

Strength: the share of the samples that the attacks leave, the share that is certified, and the seconds for each sample on one core.
Wanted at the ranges of the suite `camera`: at most 5 points between the two, 10 for patches; 0.2 s to attack a rotation, 6 s to
certify it. MNIST and two LeNet5 of WINDTUNNEL_SHARED (../shared), and a network that is trained on its 5,000 JPEG images of CIFAR-10
(--networks-of cifar). All seconds are of the processor.
"""

from __future__ import annotations

import argparse
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from windtunnel.assessments.attacks.assess import assess as attack
from windtunnel.assessments.verification.transformations.certify import assess_transformation
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.architectures import lenet5
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.core.transformations import Transformation, transformation_of
from windtunnel.core.transformed import transform, unit_tensors
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.verification import VerificationEntry

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))
REGIONS: dict[str, int] = {  # the channels of its images
    "rotation=20": 1, "translation=1.5": 1, "scale=0.2": 1, "shear=0.3": 1, "brightness=0.2": 3, "contrast=0.4": 3,
    "gamma=0.5": 1, "blur=1.5": 1, "saturation=0.8": 3, "hue=60": 3, "occlusion=2": 1, "patch=2": 1, "patch=1": 3,
    "rotation=5,scale=0.05,shear=0.05,brightness=0.05": 1, "rotation=10,hue=20": 3, "rotation=10,blur=0.8": 1,
    "translation=0.5,gamma=0.2": 1, "rotation=20,border=reflect": 1, "translation=1.5,scale=0.1,border=edge": 1,
}  # fmt: skip
SETTINGS: tuple[dict[str, float], ...] = (
    {"rotation": 10}, {"rotation": 30}, {"translation": 1}, {"scale": 0.1}, {"shear": 0.1}, {"blur": 1}, {"brightness": 0.1},
    {"contrast": 0.3}, {"gamma": 0.3}, {"rotation": 5, "brightness": 0.05}, {"translation": 2},
    {"rotation": 5, "scale": 0.05, "contrast": 0.05, "brightness": 0.01}, {"rotation": 2, "scale": 0.02, "shear": 0.02,
    "contrast": 0.02, "brightness": 0.001}, {"occlusion": 5}, {"patch": 2}, {"patch": 3}, {"patch": 4},
)  # fmt: skip
_PROOF = {"library": "transformations", "algorithm": "branch-and-bound"}
_PARTS = 10**6  # of the region of a sample: the timeout ends the search
_MANY = 2000  # images of a grid that are computed together


def region_of(text: str) -> Transformation:
    """The region of a measure."""
    transformation = transformation_of(Norm(text))
    assert transformation is not None
    return transformation


def random_network(seed: int, channels: int, height: int, width: int, classes: int = 4) -> nn.Module:
    """A small network of one of seven kinds, with random weights and a preprocessing of its own."""
    torch.manual_seed(seed)
    flat = channels * height * width
    half = -(-height // 2) * -(-width // 2)
    layers: list[list[nn.Module]] = [
        [nn.Conv2d(channels, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=False), nn.Flatten()],
        [nn.Flatten(), nn.Linear(flat, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU()],
        [nn.Flatten(), nn.Linear(flat, 10), nn.Tanh()],
        [nn.Conv2d(channels, 2, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2 * half, 8), nn.Sigmoid()],
        [nn.Conv2d(channels, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()],
        [nn.BatchNorm2d(channels), nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten()],
        [nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, 1, 1), nn.LeakyReLU(1.5), nn.Flatten()],
    ]  # fmt: skip
    body = nn.Sequential(*layers[seed % len(layers)])
    for layer in body.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean, layer.running_var = torch.rand(layer.num_features), 0.2 + torch.rand(layer.num_features)
    body.eval()
    size = int(body(torch.zeros(1, channels, height, width)).flatten(1).shape[1])
    return nn.Sequential(body, nn.Linear(size, classes)).eval().requires_grad_(False)


def random_subject(seed: int, channels: int, samples: int, size: tuple[int, int] | None = None) -> Subject:
    """A random network and images, not square, part of them black; the labels are its predictions."""
    height, width = size or (6 + seed % 2, 5 + seed % 3)
    module = random_network(seed, channels, height, width)
    inputs = torch.rand(samples, channels, height, width) * (torch.rand(samples, 1, height, width) > 0.3)
    classifier = Classifier(module, 4, tuple(inputs.shape[1:]), frozenset(Capability), module_digest(module), "random")
    return subject_of(classifier, Dataset(inputs, classifier.predict(inputs), ("0", "1")[:samples], tuple("0123")))


def points_of(
    region: Transformation, image: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """(parameters float64 (about `count`, P), contents (.., C, H, W) of a patch): a grid and as many random points."""
    p = len(region.names)
    if region.is_square:
        rooms = [size - region.side() + 1 for size in image.shape[1:]]
        places = (
            torch.cartesian_prod(*[torch.arange(room) for room in rooms])
            .view(-1, 2)
            .repeat(max(1, count // (rooms[0] * rooms[1])), 1)
        )
        content = torch.rand(len(places), *image.shape, generator=generator)
        content[::2] = content[::2].round()
        units = torch.cat([torch.full((len(places), 1), region.side()), places], 1).double()
        return units, content if region.is_patch else None
    identity, half_ranges = unit_tensors(region, torch.float64)
    side = max(2, round((count // 2) ** (1 / p)))
    lattice = torch.cartesian_prod(*[torch.linspace(-1, 1, side, dtype=torch.float64)] * p).view(-1, p)
    drawn = 2 * torch.rand(count // 2, p, generator=generator, dtype=torch.float64) - 1
    return identity + torch.cat([lattice, drawn]) * half_ranges, None


def contradictions(text: str, it: Subject, points: int, domains: int = 60) -> tuple[int, int]:
    """(samples certified or with a verified part, samples of these that a point breaks)."""
    region = region_of(text)
    entry = VerificationEntry.model_validate({**_PROOF, "params": {"domains": domains, "verified_range": True}})
    data = assess_transformation("it", entry, Budget(norm=Norm(text), epsilon=1.0), it).data
    verdicts, radii = data["verdicts"], data["certified_radius"]
    identity, half_ranges = unit_tensors(region, torch.float64)
    generator, certified, broken = torch.Generator().manual_seed(0), 0, 0
    for i, (image, label) in enumerate(zip(it.dataset.inputs, it.dataset.targets, strict=True)):
        is_verified = bool(verdicts[i] == Verdict.VERIFIED)
        if not is_verified and not float(radii[i]):
            continue
        certified += 1
        parameters, content = points_of(region, image, points, generator)
        if not is_verified:
            parameters = parameters[((parameters - identity) / half_ranges).abs().amax(1) < float(radii[i])]
        is_wrong = False
        for part in torch.arange(len(parameters)).split(_MANY):
            images = transform(
                region,
                image.expand(len(part), -1, -1, -1),
                parameters[part],
                None if content is None else content[part],
            )
            is_wrong |= bool((it.classifier.predict(images, label.expand(len(part))) != label).any())
        broken += is_wrong
    return certified, broken


def soundness(networks: int, points: int, only: str) -> None:
    """Print a row for each region whose kinds contain `only`."""
    for text, channels in REGIONS.items():
        if only not in text:
            continue
        start, certified, broken, total = time.process_time(), 0, 0, 0
        for seed in range(networks):
            it = random_subject(seed, channels, 2)
            counts = contradictions(text, it, points)
            certified, broken, total = certified + counts[0], broken + counts[1], total + len(it.dataset)
        print(
            f"{text:50} {total:5} samples {certified:5} certified {broken:3} contradicted {time.process_time() - start:7.1f} s",
            flush=True,
        )


def reference(name: str, samples: int) -> Subject:
    """A LeNet5 of ../shared on MNIST."""
    images, labels = (str(SHARED / f"data/mnist/t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    data, _ = load_dataset(
        Data.model_validate({"source": "idx", "path": images, "labels": labels, "samples": {"n": samples}}), 0
    )
    module = lenet5()
    weights = SHARED / f"data/models/mnist_lenet5_{name}trained.pt"
    module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    module.eval().requires_grad_(False)
    return subject_of(Classifier(module, 10, (1, 28, 28), frozenset(Capability), module_digest(module), name), data)


def colour_images(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) and labels of the JPEG files of CIFAR-10 in ../shared, in an order drawn from seed 0."""
    images, labels, classes = [], [], list[str]()
    with tarfile.open(SHARED / f"data/colour/cifar10/jpeg_{split}.tar") as archive:
        for member in sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name):
            name = member.name.split("/")[-2]
            classes += [] if name in classes else [name]
            pixels = np.array(Image.open(archive.extractfile(member)).convert("RGB"))  # type: ignore[arg-type]
            images.append(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)
            labels.append(classes.index(name))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]
    return torch.stack(images)[order], torch.tensor(labels)[order]


def colour_network(samples: int, epochs: int = 12, seed: int = 0) -> Subject:
    """Train a small convolutional network on 5,000 images of CIFAR-10; return it with the first `samples` test images."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    inputs, labels = colour_images("train")
    optimiser = torch.optim.Adam(module.parameters(), 2e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(50):
            images = inputs[batch]
            flipped = torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, images.flip(3), images)
            loss = nn.functional.cross_entropy(module(flipped), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    module.eval().requires_grad_(False)
    inputs, labels = colour_images("test")
    accuracy = (module(inputs).argmax(1) == labels).float().mean()
    print(
        f"cifar: {accuracy:.1%} of {len(inputs)} test images are right; {time.process_time():.0f} s to train",
        flush=True,
    )
    classifier = Classifier(module, 10, (3, 32, 32), frozenset(Capability), module_digest(module), "cifar")
    ids = tuple(str(i) for i in range(samples))
    return subject_of(classifier, Dataset(inputs[:samples], labels[:samples], ids, tuple("0123456789")))


def subject_named(name: str, samples: int) -> Subject:
    """`cln` and `adv` of MNIST, or `cifar`."""
    return colour_network(samples) if name == "cifar" else reference(name, samples)


def strength(names: list[str], samples: int, only: str, timeout: float) -> None:
    """Print a row for each network and setting whose kinds contain `only`."""
    for name in names:
        it = subject_named(name, samples)
        for ranges in SETTINGS:
            if only not in ",".join(f"{kind}={size}" for kind, size in ranges.items()):
                continue
            block = Budget.model_validate(ranges)
            exact = len(transformation_of(block.norm).names) <= 2 and "patch" not in ranges  # type: ignore[union-attr]
            entry = {"library": "transformations", "algorithm": "grid" if exact else "gradient"}
            start = time.process_time()
            attacked = attack("it", AttackEntry.model_validate(entry), block, it).data["verdicts"]
            middle = time.process_time()
            proof = VerificationEntry.model_validate({**_PROOF, "timeout": timeout, "params": {"domains": _PARTS}})
            data = assess_transformation("it", proof, block, it).data
            end = time.process_time()
            left = (attacked == Verdict.ATTACK_FAILED) & (data["verdicts"] != Verdict.FALSIFIED)
            certified = data["verdicts"] == Verdict.VERIFIED
            print(
                f"{name} {block.norm!s:32} attacked {left.float().mean():6.1%} certified {certified.float().mean():6.1%} "
                f"{(middle - start) / samples:6.2f} s {(end - middle) / samples:6.2f} s a sample", flush=True,
            )  # fmt: skip


def angles(names: list[str], samples: int, degrees: float = 10.0) -> None:
    """Print how many samples that the attack left one of 10,000 angles breaks."""
    region = region_of(f"rotation={degrees}")
    block = Budget.model_validate({"rotation": degrees})
    for name in names:
        it, start = subject_named(name, samples), time.process_time()
        entry = AttackEntry.model_validate({"library": "transformations", "algorithm": "grid"})
        attacked = attack("it", entry, block, it).data["verdicts"]
        middle = time.process_time()
        missed, survivors = 0, (attacked == Verdict.ATTACK_FAILED).nonzero().flatten().tolist()
        for i in survivors:
            image, label = it.dataset.inputs[i], it.dataset.targets[i]
            is_broken = False
            for part in torch.linspace(-degrees, degrees, 10_000, dtype=torch.float64)[:, None].split(_MANY // 4):
                images = transform(region, image.expand(len(part), -1, -1, -1), part)
                is_broken |= bool((it.classifier.predict(images, label.expand(len(part))) != label).any())
            missed += is_broken
        print(
            f"{name} rotation {degrees:g}: {samples} samples attacked in {middle - start:.1f} s, {len(survivors)} left; 10,000 angles "
            f"break {missed} of these, {time.process_time() - middle:.1f} s", flush=True,
        )  # fmt: skip


def patches(samples: int, side: int = 5) -> None:
    """Print the seconds of the attack by patches on images of CIFAR-10."""
    it, start = colour_network(samples), time.process_time()
    entry = AttackEntry.model_validate({"library": "transformations", "algorithm": "gradient"})
    attacked = attack("it", entry, Budget.model_validate({"patch": side}), it).data["verdicts"]
    left = (attacked == Verdict.ATTACK_FAILED).float().mean()
    print(
        f"cifar patch {side}x{side}: {samples} samples in {time.process_time() - start:.1f} s, {left:.1%} left",
        flush=True,
    )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--strength", action="store_true")
    parser.add_argument("--angles", action="store_true")
    parser.add_argument("--patches", action="store_true")
    parser.add_argument("--networks-of", nargs="+", choices=["cln", "adv", "cifar"], default=["cln", "adv", "cifar"])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--only", default="", help="settings whose kinds contain this")
    parser.add_argument("--timeout", type=float, default=20.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.strength:
        strength(arguments.networks_of, arguments.samples, arguments.only, arguments.timeout)
    elif arguments.angles:
        angles(arguments.networks_of, arguments.samples)
    elif arguments.patches:
        patches(arguments.samples)
    else:
        soundness(arguments.networks, arguments.points, arguments.only)


if __name__ == "__main__":
    main()
