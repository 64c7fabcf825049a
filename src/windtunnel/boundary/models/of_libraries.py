"""Code shared by the sources of models that are libraries: normalisation folded in, weights kept, random weights owned up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from windtunnel.boundary.models.loaders import TORCH, Loaded, load_weights
from windtunnel.boundary.models.record import OfLibrary
from windtunnel.boundary.models.trust import Trust, require_sha256
from windtunnel.boundary.network import no_network
from windtunnel.core.classifier import module_digest
from windtunnel.core.contracts import Caveat, Json
from windtunnel.core.errors import UserError
from windtunnel.core.references import first_line, quiet_library, users_code
from windtunnel.core.seeds import derive_seed, seeded
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import file_digest
from windtunnel.registry.plugins import View, missing

if TYPE_CHECKING:
    from windtunnel.params.model import Model

WEIGHTS = "weights.pt"
PRETRAINED, RANDOM = "pretrained", "random"
# What a model sees by the library's own road and by ours differs by rounding alone.
_SAME = 1e-5

RANDOM_WEIGHTS = Caveat(
    "random_weights",
    "The model has random weights, as model.weights: random asks: its numbers show that the assessment runs, and say nothing "
    "of a trained model.",
)


class Normalised(nn.Module):
    """A network that takes normalised inputs, for inputs in [0, 1]: (x - mean) / std for each channel comes first."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(list(std), dtype=torch.float32).view(-1, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        logits: Tensor = self.network((inputs - self.mean) / self.std)
        return logits


@contextmanager
def offline(trust: Trust, what: str, *, network: bool = False) -> Iterator[None]:
    """Call a library on a user's configuration and weights, without network, limited in time and memory, and without its warnings.

    Args:
        trust: what params.yaml says of the model: the key that messages begin with, and the time limit.
        what: what is loaded, for the message.
        network: True where params.yaml asks for a download, which has no limit.

    Raises:
        UserError: in one line, for whatever the library raises, a connection among it.
    """
    quiet = quiet_library()  # transformers' table of the weights that do not fit has thirty lines
    if network:
        with users_code(f"{trust.key}{what}"), quiet:
            yield
    else:
        with trust.bounded(what), no_network(f"{trust.key}{what}"), quiet:
            yield


@contextmanager
def importing(source: str) -> Iterator[None]:
    """Import a library in the block; UserError, in one line, where that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{missing('model.source', source)} ({first_line(error)})") from error
    except Exception as error:  # torchvision's native operators raise RuntimeError beside another build of torch
        raise UserError(
            f"model.source: {source} does not import ({first_line(error)}); it has to be the build that belongs to torch "
            f"{torch.__version__}"
        ) from error


def wanted(model: Model, key: str) -> str:
    """`model.name` or another key that this source needs. Raises UserError where it is absent."""
    value: str | None = getattr(model, key)
    if value is None:
        raise UserError(f"model.{key}: is required for model.source: {model.source}")
    return value


def given_weights(model: Model, name: str, seed: int, build: Callable[[], nn.Module]) -> tuple[nn.Module, str] | None:
    """(network, what it is called) with the weights of a file or with random ones; None where its library brings them.

    `build` makes the architecture `name`. Raises UserError for a file that does not fit it, or beside random weights.
    """
    if model.weights == RANDOM and model.path:
        raise UserError(f"model.weights: random, and model.path: {model.path}; one of the two")
    if model.path:
        network = build()
        which = load_weights(network, Path(model.path), model.path)
        return network, f"{name} ({Path(model.path).name}{which})"
    if model.weights == RANDOM:
        with seeded(derive_seed(seed, "model", "random weights")):
            return build(), name
    return None


def keep_network(
    network: nn.Module, directory: Path, model: Model, kind: type[OfLibrary], facts: Mapping[str, Json]
) -> dict[str, Json]:
    """Write the weights of a network and return the model.json record of `kind` with `facts`."""
    path = Path(model.path) if model.path else None
    if model.sha256:
        if path is None or not path.is_file():
            raise UserError("model.sha256: is the digest of a file, which model.path names")
        require_sha256(model, file_digest(path), str(path))
    save_tensors(dict(network.state_dict()), directory / WEIGHTS)
    record = {"source": model.source, "file": WEIGHTS, "sha256": file_digest(directory / WEIGHTS)}
    return kind.model_validate({**record, **facts, "random": model.weights == RANDOM}).facts


def loaded(network: nn.Module, record: OfLibrary, directory: Path) -> Loaded:
    """Return the network with the weights that were kept, behind its normalisation."""
    load_weights(network, directory / WEIGHTS, f"the kept weights of {record.original}")
    module = Normalised(network, record.mean, record.std)
    name = f"{record.source} {record.original}" + (" with random weights" if record.random else "")
    return Loaded(module, TORCH, module_digest(module), name, caveats=(RANDOM_WEIGHTS,) if record.random else ())


def check_folded(
    view: View, all_transforms: Callable[[Image.Image], Tensor], mean: Sequence[float], std: Sequence[float]
) -> None:
    """Compare `view` and a normalisation with the library's own transforms on one picture.

    Raises UserError where they are not the same: then the transforms do something that is no resize, crop or normalisation.
    """
    picture = _test_picture("RGB" if view.channels == 3 else "L")
    transformed = all_transforms(picture)
    ours = Normalised(nn.Identity(), mean, std)(view.image(picture)[None])[0]
    if transformed.shape != ours.shape or not torch.allclose(transformed, ours, atol=_SAME):
        raise UserError(
            f"model: its transforms ({view.said}) are more than resizing, cropping and a normalisation of each channel; use "
            f"a factory of your own (model.source: state_dict), with data.resize"
        )


def _test_picture(mode: str) -> Image.Image:
    """Return a 320x240 test picture whose channels differ, so that a wrong crop, order or scale shows."""
    rows, columns = np.mgrid[0:240, 0:320]
    channels = [rows % 256, columns % 256, (3 * rows + 2 * columns) % 256]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8)).convert(mode)
