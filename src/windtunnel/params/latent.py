"""Schemas of `generators` and of an entry of `latent`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    WithJsonSchema,
    field_validator,
)

from windtunnel.params.entry import Block, Entry, Samples, Value
from windtunnel.params.model import OtherModel
from windtunnel.params.numbers import Number, Seconds

Positive = Annotated[Number, Field(gt=0)]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _each_once(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"{list(values)} repeats a value; each once")
    return values


def _as_written(values: tuple[float, ...]) -> float | list[float]:
    return values[0] if len(values) == 1 else list(values)


# A number or a list of them; the metrics of the first have the plain names.
OneOrMore = Annotated[
    tuple[Positive, ...],
    BeforeValidator(_as_tuple),
    Field(min_length=1),
    AfterValidator(_each_once),
    PlainSerializer(_as_written),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}),
]


class GeneratorRecipe(Block):
    """Options by which `generators` trains a generative model per class on the training split."""

    algorithm: Literal["wgan-gp", "vae", "sphere"] = Field(
        "vae", description="WGAN-GP (Gulrajani 2017), VAE (Kingma 2014), or an autoencoder whose prior is the sphere"
    )
    latent_dim: PositiveInt = Field(16, description="n_L, the dimension of the latent space")
    width: PositiveInt = Field(16, description="channels of the first convolution, for images over 8 pixels a side")
    steps: PositiveInt = Field(1500, description="updates of the decoder")
    batch_size: PositiveInt = Field(32, description="images of each class in one update")
    learning_rate: Positive = Field(2e-3, description="of Adam")
    critic_steps: PositiveInt = Field(5, description="wgan-gp: updates of the critic for one of the generator")
    gradient_penalty: Positive = Field(10, description="wgan-gp: weight of the penalty on the critic's gradient")
    prior_weight: Positive = Field(
        0.1, description="vae: weight of the KL term; sphere: of the sliced Wasserstein term"
    )


class Generators(Block):
    """The generative models that latent-space assessments use."""

    source: Literal["none", "train", "function"] = Field(
        "none", description="train: on the training split; function: your own"
    )
    train: GeneratorRecipe = GeneratorRecipe()
    function: str | None = Field(
        None, description="module:function that builds an object with decode(latents, classes) and latent_dim"
    )
    kwargs: dict[str, Value] = Field(default_factory=dict, description="arguments of the function")
    path: str | None = Field(None, description="function: weights to load into what it returns, a torch module")
    decay: Annotated[Number, Field(gt=0, le=1)] = Field(
        1, description="codes are drawn from N(0, decay^2 I): below 1 more typical images, of less variety"
    )
    value_range: tuple[Number, Number] | None = Field(
        None, description="function: what its images span, e.g. [-1, 1]; its own value_range where absent"
    )

    time_limit: Seconds = Field(
        60, description="function: seconds that windtunnel check waits for an answer; a stage ten times as long"
    )

    @field_validator("value_range")
    @classmethod
    def _not_empty(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[1] <= value[0]:
            raise ValueError(f"[{value[0]:g}, {value[1]:g}] is empty; write [lowest, highest], e.g. [-1, 1]")
        return value


class Encoding(Block):
    """Latent codes of real images: by the model's own encoder, or by Adam over the codes."""

    by: Literal["auto", "encoder", "search"] = Field("auto", description="auto: the encoder where there is one")
    restarts: PositiveInt = Field(4, description="search: codes tried for each image")
    steps: PositiveInt = 40
    learning_rate: Positive = Field(0.1, description="search: of Adam")


class Effort(Block):
    """Latent PGD: how long it looks."""

    restarts: PositiveInt = 12
    steps: PositiveInt = 50
    step_size: Positive = Field(0.05, description="length of a step, as a share of the radius")


class Search(Effort):
    """Latent PGD inside one radius."""

    rho: Positive = Field(2.5, description="radius around the decayed code, in the scaled norm ||.||_2 / sqrt(n_L)")


class BoundedSearch(Effort):
    """Latent PGD inside the radii of LAGA and LARA."""

    rho: OneOrMore = Field((0.3,), description="radius around the decayed code; a list for LAGA and LARA at each")


class Conventional(Block):
    """The conventional counterparts on the same samples, in [0, 1] pixels."""

    scaled_l2: OneOrMore = Field((0.05,), description="adversarial frequency: bound on ||dx||_2 / sqrt(n), or several")
    linf: OneOrMore = Field((0.075,), description="adversarial frequency: bound on max |dx|, or several")
    reach: PositiveInt = Field(6, description="adversarial severity: search up to so many times the largest bound")
    restarts: PositiveInt = 4
    steps: PositiveInt = 50
    step_size: Positive = 0.05
    noise_sigma: Positive = Field(0.4, description="Gaussian noise; 0.4 is 0.8 of a [-1, 1] range as in the paper")
    noise_draws: PositiveInt = Field(4, description="noisy copies of each sample")


class LatentSamples(Samples):
    """Which samples are encoded; none for the metrics of generated images alone."""

    n: NonNegativeInt | None = Field(
        None, description="how many; all where absent, 0 for generated images alone (models without an encoder)"
    )


class LatentEntry(Entry):
    """Latent-space metrics (Buzhinsky, Nerinovsky, Tripakis 2021, arXiv 2003.01993)."""

    drops_images: ClassVar[bool] = False  # decoded images are what its numbers are computed from

    storage: None = Field(None, description="latent keeps all its images: its numbers are computed from them")
    library: str = "windtunnel"
    algorithm: str = "latent_pgd"
    generated: PositiveInt = Field(100, description="generated images that are searched, by class frequency")
    codes: PositiveInt = Field(2000, description="generated images for local generative accuracy (LGA)")
    samples: LatentSamples = LatentSamples()
    decay_epsilon: OneOrMore = Field(
        (0.5,), description="noise whose decayed code is the centre of the searches; a list to search from each"
    )
    noise_levels: tuple[Positive, ...] = Field((0.25, 0.5, 0.75, 1.0), min_length=1, description="epsilons of LLNA")
    noise_draws: PositiveInt = Field(8, description="perturbed codes of each image and epsilon, for LLNA")
    encoding: Encoding = Encoding()
    bounded: BoundedSearch = BoundedSearch()
    minimum: Search = Search()
    conventional: Conventional | None = Field(Conventional(), description="null to leave the counterparts out")
    models: list[str | OtherModel] = Field(
        default_factory=list,
        description="further classifiers: model directories of earlier runs or MLflow URIs, or {model, factory, ...}",
    )

    def visualisers_by_default(self, of_family: tuple[str, ...]) -> tuple[str, ...]:
        """With a further classifier there are two to compare, with two further ones correlations to draw."""
        of_several = ("LatentComparisonVisualiser", "LatentCorrelationVisualiser")[: len(self.models)]
        return (*of_family, *of_several)

    @field_validator("noise_levels")
    @classmethod
    def _once(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"{list(value)} repeats a level; each epsilon once")
        return tuple(sorted(value))
