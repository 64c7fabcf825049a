"""Training of the built-in generative models: all classes in one loop, a batch of each class in every step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from windtunnel.boundary.generators.banks import feature_bank
from windtunnel.boundary.generators.builtin import BUILTIN, Autoencoder, Generator, SphereAutoencoder, on_sphere
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.params.latent import GeneratorRecipe
from windtunnel.runtime.progress import progress_bar

# One update of a model on images (K, B, *shape), B of each class.
Step = Callable[[Tensor], None]
PROJECTIONS = 50  # directions of the sliced Wasserstein distance


def train_generators(recipe: GeneratorRecipe, data: Dataset, seed: int, device: torch.device) -> Generator:
    """Train the recipe's model on `data`; in eval mode, on the CPU.

    Deterministic in `seed` on one device. Raises UserError for a class without training samples.
    """
    members = _members(data)
    low, high = data.value_range
    inputs = ((data.inputs - low) / (high - low)).to(device)
    shape = tuple(inputs.shape[1:])
    generator = torch.Generator().manual_seed(derive_seed(seed, "generators", recipe.algorithm))
    with seeded(derive_seed(seed, "generators", "weights")):
        model = BUILTIN[recipe.algorithm](data.num_classes, recipe.latent_dim, shape, recipe.width).to(device)
        step = _STEPS[recipe.algorithm](recipe, model, shape, generator)
        with progress_bar() as progress:
            for _ in progress.track(range(recipe.steps), description=f"train {recipe.algorithm}"):
                for _ in range(recipe.critic_steps if recipe.algorithm == "wgan-gp" else 1):
                    step(inputs[_draw(members, recipe.batch_size, generator)])
    return model.requires_grad_(False).eval().cpu()


def _members(data: Dataset) -> list[Tensor]:
    members = [(data.targets == label).nonzero().flatten() for label in range(data.num_classes)]
    if empty := [data.class_names[i] for i, indices in enumerate(members) if not len(indices)]:
        raise UserError(
            f"generators.source: train needs training samples of every class; there are none of {', '.join(empty[:5])}"
        )
    return members


def _draw(members: list[Tensor], n: int, generator: torch.Generator) -> Tensor:
    """Return indices (K, n) of samples of each class, drawn with replacement."""
    uniform = torch.rand(len(members), n, generator=generator)
    return torch.stack([indices[(u * len(indices)).long()] for indices, u in zip(members, uniform, strict=True)])


def _vae_step(recipe: GeneratorRecipe, model: Generator, shape: tuple[int, ...], generator: torch.Generator) -> Step:
    """Evidence lower bound with Bernoulli pixels; the KL term is weighted (Higgins et al. 2017)."""
    assert isinstance(model, Autoencoder)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)

    def step(images: Tensor) -> None:
        mean, log_variance = model.encoder(images).chunk(2, dim=2)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        decoded = model.decoder(mean + noise * (0.5 * log_variance).exp())
        likelihood = nn.functional.binary_cross_entropy(decoded, images, reduction="sum")
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        optimiser.zero_grad()
        ((likelihood + recipe.prior_weight * divergence) / images.shape[1]).backward()
        optimiser.step()
        schedule.step()

    return step


def _sphere_step(recipe: GeneratorRecipe, model: Generator, shape: tuple[int, ...], generator: torch.Generator) -> Step:
    """Reconstruction, and the codes of a batch spread over the sphere by the sliced Wasserstein distance.

    Kolouri et al. 2018, arXiv 1804.01947. The codes are jittered before decoding, so that neighbours decode alike.
    """
    assert isinstance(model, SphereAutoencoder)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)

    def step(images: Tensor) -> None:
        codes = on_sphere(model.encoder(images))
        noise = torch.randn(codes.shape, generator=generator).to(codes.device)
        decoded = model.decoder(on_sphere(codes + 0.25 * noise))
        error = nn.functional.binary_cross_entropy(decoded, images, reduction="sum")
        prior = on_sphere(torch.randn(codes.shape, generator=generator).to(codes.device))
        directions = torch.randn(codes.shape[2], PROJECTIONS, generator=generator).to(codes.device)
        directions = nn.functional.normalize(directions, dim=0)
        gap = (codes @ directions).sort(dim=1).values - (prior @ directions).sort(dim=1).values
        spread = gap.square().mean(2).sum() * codes.shape[2]
        optimiser.zero_grad()
        ((error + recipe.prior_weight * spread) / images.shape[1]).backward()
        optimiser.step()
        schedule.step()

    return step


def _wgan_step(recipe: GeneratorRecipe, model: Generator, shape: tuple[int, ...], generator: torch.Generator) -> Step:
    """One critic update; after every `critic_steps` of them one of the generator (Gulrajani et al. 2017, arXiv 1704.00028)."""
    k = len(model.classes)
    device = next(model.parameters()).device
    critic = feature_bank(k, shape, 1, recipe.width).to(device)
    optimisers = [
        torch.optim.Adam(module.parameters(), lr=recipe.learning_rate, betas=(0.0, 0.9)) for module in (model, critic)
    ]
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimiser, 1, 0.1, total)
        for optimiser, total in zip(optimisers, (recipe.steps, recipe.steps * recipe.critic_steps), strict=True)
    ]
    done = 0

    def generate(n: int) -> Tensor:
        codes = torch.randn(k, n, recipe.latent_dim, generator=generator).to(device)
        images: Tensor = model.decoder(codes)
        return images

    def update(index: int, loss: Tensor) -> None:
        optimisers[index].zero_grad()
        loss.backward()
        optimisers[index].step()
        schedules[index].step()

    def step(images: Tensor) -> None:
        nonlocal done
        with torch.no_grad():
            fake = generate(images.shape[1])
        share = torch.rand(*images.shape[:2], *(1 for _ in shape), generator=generator).to(device)
        between = (share * images + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(2).norm(dim=2) - 1).square()
        # Sums over the classes: each class is a game of its own.
        gain = critic(fake) - critic(images)
        update(1, gain.mean(1).sum() + recipe.gradient_penalty * penalty.mean(1).sum())
        done += 1
        if done % recipe.critic_steps == 0:
            update(0, -critic(generate(images.shape[1])).mean(1).sum())

    return step


_STEPS: dict[str, Callable[[GeneratorRecipe, Generator, tuple[int, ...], torch.Generator], Step]] = {
    "vae": _vae_step,
    "sphere": _sphere_step,
    "wgan-gp": _wgan_step,
}
