"""Training of the built-in generative models: all classes in one loop, a batch of each class in every step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

from windtunnel.boundary.generators import banks
from windtunnel.core.dataset import Dataset
from windtunnel.core.errors import UserError
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.params.latent import GeneratorRecipe
from windtunnel.runtime.progress import progress_bar

# One update of a model on images (K, B, *shape), B of each class.
Step = Callable[[Tensor], None]
PROJECTIONS = 50  # directions of the sliced Wasserstein distance


def train_generators(recipe: GeneratorRecipe, data: Dataset, seed: int, device: torch.device) -> banks.Generator:
    """Train the recipe's model on `data`; in eval mode, on the CPU.

    Deterministic in `seed` on one device. Raises UserError for a class without training samples.
    """
    members = _members(data)
    low, high = data.value_range
    inputs = ((data.inputs - low) / (high - low)).to(device)
    shape = tuple(inputs.shape[1:])
    generator = torch.Generator().manual_seed(derive_seed(seed, "generators", recipe.algorithm))
    with seeded(derive_seed(seed, "generators", "weights")):
        model = built(recipe, data.num_classes, shape).to(device)
        step = _STEPS[recipe.algorithm](recipe, model, shape, generator)
        with progress_bar() as progress:
            for _ in progress.track(range(recipe.steps), description=f"train {recipe.algorithm}"):
                for _ in range(recipe.critic_steps if recipe.algorithm == "wgan-gp" else 1):
                    step(inputs[_draw(members, recipe.batch_size, generator)])
    return model.requires_grad_(False).eval().cpu()


def built(recipe: GeneratorRecipe, num_classes: int, shape: tuple[int, ...]) -> banks.Generator:
    """Return the recipe's model for inputs of `shape`, untrained."""
    return banks.BUILTIN[recipe.algorithm](num_classes, recipe.latent_dim, shape, recipe.width)


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


def _minimiser(
    module: nn.Module, schedule_of: Callable[[Optimizer], LRScheduler], **options: Any
) -> Callable[[Tensor], None]:
    """Return a function that makes one step of Adam, of these options, down the gradient of a loss."""
    optimiser = torch.optim.Adam(module.parameters(), **options)
    schedule = schedule_of(optimiser)

    def minimise(loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    return minimise


def _autoencoder_step(
    recipe: GeneratorRecipe, model: banks.Generator, shape: tuple[int, ...], generator: torch.Generator
) -> Step:
    loss = _sphere_loss if isinstance(model, banks.SphereAutoencoder) else _vae_loss
    minimise = _minimiser(model, lambda optimiser: CosineAnnealingLR(optimiser, recipe.steps), lr=recipe.learning_rate)
    return lambda images: minimise(loss(recipe, model, images, generator) / images.shape[1])


def _vae_loss(recipe: GeneratorRecipe, model: banks.Generator, images: Tensor, generator: torch.Generator) -> Tensor:
    """Evidence lower bound with Bernoulli pixels; the KL term is weighted (Higgins et al. 2017)."""
    assert isinstance(model, banks.Autoencoder)
    mean, log_variance = model.encoder(images).chunk(2, dim=2)
    noise = torch.randn(mean.shape, generator=generator).to(mean.device)
    decoded = model.decoder(mean + noise * (0.5 * log_variance).exp())
    likelihood = nn.functional.binary_cross_entropy(decoded, images, reduction="sum")
    divergence: Tensor = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
    return likelihood + recipe.prior_weight * divergence


def _sphere_loss(recipe: GeneratorRecipe, model: banks.Generator, images: Tensor, generator: torch.Generator) -> Tensor:
    """Reconstruction, and the codes of a batch spread over the sphere by the sliced Wasserstein distance.

    Kolouri et al. 2018, arXiv 1804.01947. The codes are jittered before decoding, so that neighbours decode alike.
    """
    assert isinstance(model, banks.SphereAutoencoder)
    codes = banks.on_sphere(model.encoder(images))
    noise = torch.randn(codes.shape, generator=generator).to(codes.device)
    decoded = model.decoder(banks.on_sphere(codes + 0.25 * noise))
    error = nn.functional.binary_cross_entropy(decoded, images, reduction="sum")
    prior = banks.on_sphere(torch.randn(codes.shape, generator=generator).to(codes.device))
    directions = torch.randn(codes.shape[2], PROJECTIONS, generator=generator).to(codes.device)
    directions = nn.functional.normalize(directions, dim=0)
    gap = (codes @ directions).sort(dim=1).values - (prior @ directions).sort(dim=1).values
    spread = gap.square().mean(2).sum() * codes.shape[2]
    return error + recipe.prior_weight * spread


def _wgan_step(
    recipe: GeneratorRecipe, model: banks.Generator, shape: tuple[int, ...], generator: torch.Generator
) -> Step:
    """One critic update; after every `critic_steps` of them one of the generator (Gulrajani et al. 2017, arXiv 1704.00028)."""
    k = len(model.classes)
    device = next(model.parameters()).device
    critic = banks.feature_bank(k, shape, 1, recipe.width).to(device)
    options = {"lr": recipe.learning_rate, "betas": (0.0, 0.9)}
    critic_steps = recipe.steps * recipe.critic_steps
    update_model = _minimiser(model, lambda optimiser: LinearLR(optimiser, 1, 0.1, recipe.steps), **options)
    update_critic = _minimiser(critic, lambda optimiser: LinearLR(optimiser, 1, 0.1, critic_steps), **options)
    done = 0

    def generate(n: int) -> Tensor:
        codes = torch.randn(k, n, recipe.latent_dim, generator=generator).to(device)
        images: Tensor = model.decoder(codes)
        return images

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
        update_critic(gain.mean(1).sum() + recipe.gradient_penalty * penalty.mean(1).sum())
        done += 1
        if done % recipe.critic_steps == 0:
            update_model(-critic(generate(images.shape[1])).mean(1).sum())

    return step


_STEPS = {"vae": _autoencoder_step, "sphere": _autoencoder_step, "wgan-gp": _wgan_step}
