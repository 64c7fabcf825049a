"""Latent minimum search: all images and restarts at once, against one image and one restart at a time. One run, one machine.

    python -m benchmarks.latent [--images 100] [--loop-images 100]

Wanted: at least 30 times faster on 2 cores, at an equal mean norm within 2 %. `--loop-images` runs the loop on fewer images
and scales its time up, for a quick look.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from windtunnel.assessments.latent.noise import scaled_norm, shrink
from windtunnel.assessments.latent.search import SCALED_L2, Problem, SearchSettings, minimum_search
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.generators.interface import FittedGenerator
from windtunnel.boundary.generators.load import fit
from windtunnel.boundary.generators.training import train_generators
from windtunnel.boundary.models.training import train_classifier
from windtunnel.params.data import Data
from windtunnel.params.latent import GeneratorRecipe
from windtunnel.params.model import Recipe

PLAN = SearchSettings(rho=2.5, restarts=12, steps=50, step_size=0.05)
CPU = torch.device("cpu")


def case(images: int) -> tuple[torch.nn.Module, FittedGenerator, Tensor, Tensor]:
    """A small CNN on digits, a VAE per class, and codes of `images` generated images with their classes."""
    assessed, train = load_dataset(Data(samples={"n": 200, "selection": "stratified"}), 0)
    assert train is not None
    module = train_classifier(Recipe(architecture="cnn", epochs=8), train, 0, CPU).requires_grad_(False)
    model = train_generators(GeneratorRecipe(steps=800), train, 0, CPU)
    generators = fit(model, "vae", None, CPU, assessed)
    codes = torch.randn(images, generators.latent_dim, generator=torch.Generator().manual_seed(0))
    return module, generators, codes * shrink(0.5), torch.arange(images) % 10


def one_at_a_time(module: torch.nn.Module, generators: FittedGenerator, centre: Tensor, label: int) -> float:
    """The same search as a straightforward loop: one code, restart after restart, each inside the norm found so far."""
    found, classes = float("inf"), torch.tensor([label])
    other_classes = [k for k in range(10) if k != label]

    def leads(change: Tensor) -> Tensor:
        """score(true) - score(other class) for each other class."""
        scores = module(generators.decode((centre + change)[None], classes))[0]
        return scores[label] - scores[other_classes]

    def margin(change: Tensor) -> Tensor:
        return leads(change).min()

    start = torch.zeros_like(centre).requires_grad_()
    gaps = leads(start)
    if float(gaps.detach().min()) < 0:
        return 0.0
    slopes = [torch.autograd.grad(gap, start, retain_graph=True)[0].norm() for gap in gaps]
    nearest = (gaps.detach() / torch.stack(slopes)).argsort().tolist()
    for restart in range(PLAN.restarts):
        radius = min(found, PLAN.rho)
        change = torch.zeros_like(centre)
        aim = nearest[restart // 2 % len(nearest)] if restart % 2 else None
        if restart and aim is None:
            drawn = torch.randn_like(centre)
            change = drawn * float(torch.rand(1)) * radius / float(scaled_norm(drawn[None]))
        for _ in range(PLAN.steps):
            change.requires_grad_()
            gaps = leads(change)
            if float(gaps.detach().min()) < 0:
                break
            (gradient,) = torch.autograd.grad(gaps.min() if aim is None else gaps[aim], change)
            change = change.detach() - PLAN.step_size * radius * gradient / scaled_norm(gradient[None]).clamp_min(1e-30)
            change = change * min(1.0, radius / max(float(scaled_norm(change[None])), 1e-30))
        change = change.detach()
        with torch.no_grad():
            if float(margin(change)) < 0:
                low, high = 0.0, 1.0
                for _ in range(12):
                    middle = (low + high) / 2
                    low, high = (low, middle) if float(margin(change * middle)) < 0 else (middle, high)
                found = min(found, float(scaled_norm((change * high)[None])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--loop-images", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module, generators, centres, classes = case(options.images)
    looped = options.loop_images or options.images

    def scores(points: Tensor, rows: Tensor) -> Tensor:
        found: Tensor = module(generators.decode(points, classes[rows]))
        return found

    problem = Problem(scores, centres, classes, SCALED_L2)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        batched = minimum_search(problem, PLAN, torch.Generator().manual_seed(0)).distances
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    single = torch.tensor([one_at_a_time(module, generators, centres[i], int(classes[i])) for i in range(looped)])
    loop = (time.perf_counter() - start) * options.images / looped
    both = batched[:looped].isfinite() & single.isfinite()
    one, other = float(batched[:looped][both].mean()), float(single[both].mean())
    print(f"{options.images} images, {PLAN.restarts} restarts of {PLAN.steps} steps")
    print(
        f"  batched {sorted(times)[1]:.2f} s (median of 3), one at a time {loop:.1f} s: {loop / sorted(times)[1]:.0f} times faster"
    )
    print(f"  mean minimum scaled norm {one:.4f} and {other:.4f} ({one / other - 1:+.2%}), found {int(batched.isfinite().sum())} "
          f"of {len(batched)} and {int(single.isfinite().sum())} of {looped}")  # fmt: skip


if __name__ == "__main__":
    main()
