"""Interface of a generative model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from windtunnel.core.errors import IncompatibleError
from windtunnel.runtime.supervised import limited

TIME_LIMIT = "generators.time_limit"


@runtime_checkable
class GenerativeModel(Protocol):
    """Generator of a user: anything with these two; a torch module where its weights are to be loaded from a file.

    Optional attributes: `encode(images, classes) -> latents` (N, latent_dim); `value_range`, what the images span
    ((0, 1) where absent); `classes`, the class indices it knows (all of the data's where absent).
    """

    latent_dim: int

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images (N, C, H, W) of codes (N, latent_dim) ~ N(0, I) and class indices (N,); differentiable in the codes."""


@dataclass(frozen=True, slots=True)
class FittedGenerator:
    """A generative model that fits the data, seen through the data's value range.

    model: in its own value range `span`; `inputs_span` is what the classifier's inputs span, [0, 1] for images. decay: the
    standard deviation of the codes that are drawn. time_limit: seconds for an answer, in `windtunnel check`; a stage waits
    ten times as long.
    """

    model: GenerativeModel
    num_classes: int
    span: tuple[float, float]
    inputs_span: tuple[float, float]
    digest: str
    source: str
    decay: float = 1.0
    time_limit: float = 60.0

    @property
    def latent_dim(self) -> int:
        """n_L, the dimension of the latent space."""
        return self.model.latent_dim

    @property
    def has_encoder(self) -> bool:
        """True if the model can encode; else codes are searched."""
        return callable(getattr(self.model, "encode", None))

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` codes (n, n_L) from N(0, decay^2 I), on the CPU."""
        return self.decay * torch.randn(n, self.latent_dim, generator=generator)

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Return inputs of the classifier (N, ...) for codes (N, n_L) of `classes` (N,); differentiable in the codes."""
        with self.asked():
            return _moved(self.model.decode(latents, classes), self.span, self.inputs_span)

    def encode(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """Codes (N, n_L) by the model's own encoder. Raises AttributeError where it has none."""
        encoder: Callable[[Tensor, Tensor], Tensor] = self.model.encode  # type: ignore[attr-defined]  # optional
        with self.asked():
            return encoder(_moved(inputs, self.inputs_span, self.span), classes)

    @torch.no_grad()
    def require_length_matters(self, where: str) -> None:
        """Raise IncompatibleError where the decoder normalises codes: decaying a code then leaves its image unchanged."""
        classes = torch.arange(self.num_classes).repeat(4)
        codes = torch.randn(len(classes), self.latent_dim, generator=torch.Generator().manual_seed(0))
        if isinstance(self.model, nn.Module):
            device = next((tensor.device for tensor in self.model.state_dict().values()), codes.device)
            codes, classes = codes.to(device), classes.to(device)
        if torch.allclose(self.decode(codes, classes), self.decode(codes / 2, classes), atol=1e-5):
            raise IncompatibleError(
                f"{where}: the generative model ({self.source}) decodes a code of half the length to the same image, so it uses "
                f"directions alone; a decayed image would be its reconstruction, and LARS and LAGS would fall by construction. "
                f"Use generators.train.algorithm: vae or wgan-gp, or a function whose decoder uses the length"
            )

    def asked(self) -> AbstractContextManager[None]:
        """Limit the time of a model's call: one that hangs ends `check` or the stage with one line."""
        return limited("generators: the model", self.time_limit, TIME_LIMIT)

    def to(self, device: torch.device) -> FittedGenerator:
        """Move the weights, in place; a model that is no torch module stays where it is."""
        if isinstance(self.model, nn.Module):
            self.model.to(device)
        return self


class PerClass(nn.Module):
    """One model per class, joined: `decoders[i]` maps codes (N, latent_dim) to images of class i, `encoders[i]` back.

    For generators trained one by one, as those of the paper; the built-in ones are banks instead.
    """

    def __init__(
        self,
        decoders: Sequence[nn.Module],
        latent_dim: int,
        encoders: Sequence[nn.Module] = (),
        value_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.decoders, self.encoders = nn.ModuleList(decoders), nn.ModuleList(encoders)
        self.latent_dim, self.value_range, self.classes = latent_dim, value_range, range(len(decoders))
        if encoders:
            self.encode = self._encode

    def decode(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images of the codes, each by the decoder of its class."""
        return _by_class(self.decoders, latents, classes)

    def _encode(self, images: Tensor, classes: Tensor) -> Tensor:
        return _by_class(self.encoders, images, classes)


def _by_class(modules: nn.ModuleList, x: Tensor, classes: Tensor) -> Tensor:
    order = classes.argsort(stable=True)
    sizes = torch.bincount(classes, minlength=len(modules)).tolist()
    parts = zip(modules, x[order].split(sizes), strict=True)
    return torch.cat([module(part) for module, part in parts if len(part)])[order.argsort()]


def _moved(values: Tensor, source: tuple[float, float], target: tuple[float, float]) -> Tensor:
    if source == target:
        return values
    return (values - source[0]) / (source[1] - source[0]) * (target[1] - target[0]) + target[0]
