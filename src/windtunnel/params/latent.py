"""Schemas of `generators` and of an entry of `latent`."""

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

from windtunnel.params.entry import Block, Entry, Number, Positive, PositiveShare, Samples, Seconds, Value, key
from windtunnel.params.model import OtherModel


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

    algorithm: Literal["wgan-gp", "vae", "sphere"] = key(
        "vae", "WGAN-GP (Gulrajani 2017), VAE (Kingma 2014), or an autoencoder whose prior is the sphere"
    )
    latent_dim: PositiveInt = key(16, "n_L, the dimension of the latent space")
    width: PositiveInt = key(16, "channels of the first convolution, for images over 8 pixels a side")
    steps: PositiveInt = key(1500, "updates of the decoder")
    batch_size: PositiveInt = key(32, "images of each class in one update")
    learning_rate: Positive = key(2e-3, "of Adam")
    critic_steps: PositiveInt = key(5, "wgan-gp: updates of the critic for one of the generator")
    gradient_penalty: Positive = key(10, "wgan-gp: weight of the penalty on the critic's gradient")
    prior_weight: Positive = key(0.1, "vae: weight of the KL term; sphere: of the sliced Wasserstein term")


class Generators(Block):
    """The generative models that latent-space assessments use."""

    source: Literal["none", "train", "function"] = key("none", "train: on the training split; function: your own")
    train: GeneratorRecipe = GeneratorRecipe()
    function: str | None = key(
        None, "module:function that builds an object with decode(latents, classes) and latent_dim"
    )
    kwargs: dict[str, Value] = key(dict, "arguments of the function")
    path: str | None = key(None, "function: weights to load into what it returns, a torch module")
    decay: PositiveShare = key(1, "codes are drawn from N(0, decay^2 I): below 1 more typical images, of less variety")
    value_range: tuple[Number, Number] | None = key(
        None, "function: what its images span, e.g. [-1, 1]; its own value_range where absent"
    )

    time_limit: Seconds = key(
        60, "function: seconds that windtunnel check waits for an answer; a stage ten times as long"
    )

    @field_validator("value_range")
    @classmethod
    def _not_empty(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[1] <= value[0]:
            raise ValueError(f"[{value[0]:g}, {value[1]:g}] is empty; write [lowest, highest], e.g. [-1, 1]")
        return value


class Encoding(Block):
    """Latent codes of real images: by the model's own encoder, or by Adam over the codes."""

    by: Literal["auto", "encoder", "search"] = key("auto", "auto: the encoder where there is one")
    restarts: PositiveInt = key(4, "search: codes tried for each image")
    steps: PositiveInt = 40
    learning_rate: Positive = key(0.1, "search: of Adam")


class Effort(Block):
    """Latent PGD: how long it looks."""

    restarts: PositiveInt = 12
    steps: PositiveInt = 50
    step_size: Positive = key(0.05, "length of a step, as a share of the radius")


class Search(Effort):
    """Latent PGD inside one radius."""

    rho: Positive = key(2.5, "radius around the decayed code, in the scaled norm ||.||_2 / sqrt(n_L)")


class BoundedSearch(Effort):
    """Latent PGD inside the radii of LAGA and LARA."""

    rho: OneOrMore = key((0.3,), "radius around the decayed code; a list for LAGA and LARA at each")


class Conventional(Block):
    """The conventional counterparts on the same samples, in [0, 1] pixels."""

    scaled_l2: OneOrMore = key((0.05,), "adversarial frequency: bound on ||dx||_2 / sqrt(n), or several")
    linf: OneOrMore = key((0.075,), "adversarial frequency: bound on max |dx|, or several")
    reach: PositiveInt = key(6, "adversarial severity: search up to so many times the largest bound")
    restarts: PositiveInt = 4
    steps: PositiveInt = 50
    step_size: Positive = 0.05
    noise_sigma: Positive = key(0.4, "Gaussian noise; 0.4 is 0.8 of a [-1, 1] range as in the paper")
    noise_draws: PositiveInt = key(4, "noisy copies of each sample")


class LatentSamples(Samples):
    """Which samples are encoded; none for the metrics of generated images alone."""

    n: NonNegativeInt | None = key(
        None, "how many; all where absent, 0 for generated images alone (models without an encoder)"
    )


class LatentEntry(Entry):
    """Latent-space metrics (Buzhinsky, Nerinovsky, Tripakis 2021, arXiv 2003.01993)."""

    drops_images: ClassVar[bool] = False  # decoded images are what its numbers are computed from

    storage: None = key(None, "latent keeps all its images: its numbers are computed from them")
    library: str = "windtunnel"
    algorithm: str = "latent_pgd"
    generated: PositiveInt = key(100, "generated images that are searched, by class frequency")
    codes: PositiveInt = key(2000, "generated images for local generative accuracy (LGA)")
    samples: LatentSamples = LatentSamples()
    decay_epsilon: OneOrMore = key(
        (0.5,), "noise whose decayed code is the centre of the searches; a list to search from each"
    )
    noise_levels: tuple[Positive, ...] = key((0.25, 0.5, 0.75, 1.0), "epsilons of LLNA", min_length=1)
    noise_draws: PositiveInt = key(8, "perturbed codes of each image and epsilon, for LLNA")
    encoding: Encoding = Encoding()
    bounded: BoundedSearch = BoundedSearch()
    minimum: Search = Search()
    conventional: Conventional | None = key(Conventional(), "null to leave the counterparts out")
    models: list[str | OtherModel] = key(
        list, "further classifiers: model directories of earlier runs or MLflow URIs, or {model, factory, ...}"
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
