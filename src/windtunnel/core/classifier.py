"""The model under assessment, whatever it was made with, as one value with declared capabilities."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from windtunnel.core.contracts import Algorithm, Capability, Caveat
from windtunnel.core.criterion import SOFTMAX, Criterion
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.references import users_code

FORWARD_BATCH = 512
_FORWARD_VALUES = 2**23  # of the inputs of a batch: beyond, what the layers hold of it is gigabytes
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Classifier:
    """A trained classifier.

    module: maps float32 inputs (N, *input_shape) in [0, 1] to logits (N, K); its own normalisation lives inside it.
    It is in eval mode and nothing of ours ever changes it. A backend without autograd is wrapped as a module too,
    and lacks `Capability.AUTOGRAD`. caveats: what limits every number of it.
    """

    module: nn.Module
    num_classes: int
    input_shape: tuple[int, ...]
    capabilities: frozenset[Capability]
    digest: str
    source: str
    device: torch.device = CPU
    onnx_path: Path | None = None
    caveats: tuple[Caveat, ...] = ()
    # how the logits are read
    criterion: Criterion = SOFTMAX

    @torch.no_grad()
    def logits(self, inputs: Tensor, batch_size: int | None = None) -> Tensor:
        """Logits, float32 (N, K) on the CPU, in batches of `batch_size`, `forward_samples` where it is None."""
        if not len(inputs):
            return torch.empty(0, self.num_classes)
        size = batch_size or forward_samples(inputs)
        with users_code("model"):
            logits = torch.cat([self.module(batch.to(self.device)).float().cpu() for batch in inputs.split(size)])
        if logits.shape != (len(inputs), self.num_classes):
            raise UserError(
                f"model: gives logits of shape {tuple(logits.shape)} for {len(inputs)} samples of {self.num_classes} classes"
            )
        return logits

    def predict(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the predicted classes, int64 (N,) on the CPU, as `Criterion.predict` reads the logits."""
        return self.criterion.predict(self.logits(inputs), labels)

    def require(self, algorithm: Algorithm, where: str) -> None:
        """Raise IncompatibleError, in one line that says what would work, unless this model can run the algorithm."""
        missing = algorithm.requires - self.capabilities
        if missing:
            names = ", ".join(sorted(missing))
            raise IncompatibleError(
                f"{where}: {algorithm.library} {algorithm.name} ({algorithm.threat_model}) needs {names}, which "
                f"{self.source} does not offer (it offers {', '.join(sorted(self.capabilities))}). Use the model as a "
                f"torch module (state_dict or torch.export), or an algorithm that needs only its forward pass: "
                f"windtunnel algorithms --requires forward"
            )


def forward_samples(inputs: Tensor) -> int:
    """Return how many of `inputs` (N, ...) form a batch: 512 up to 3x73x73, fewer of larger ones, whatever memory is free."""
    return max(1, min(FORWARD_BATCH, _FORWARD_VALUES // max(1, inputs[:1].numel())))


def copied(module: nn.Module | None, shared: Iterable[Tensor] = ()) -> nn.Module | None:
    """Return a copy of a module that holds the `shared` tensors themselves; None of one that cannot be copied."""
    with suppress(Exception):  # a session, a lock or a handle inside, of whatever library
        return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})
    return None


def module_digest(module: nn.Module) -> str:
    """sha256 over names and bytes of all parameters and buffers; changes if and only if one of them does."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        _add(digest, name, value)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, value: object) -> None:
    """Add a tensor, or the packed parameters of a quantized layer, to a digest."""
    if isinstance(value, tuple):  # packed weights and bias
        for part in value:
            _add(digest, name, part)
    elif not isinstance(value, Tensor):
        digest.update(f"{name}{value}".encode())
    elif value.is_quantized:
        per_channel = value.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
        scale = (value.q_per_channel_scales(), value.q_per_channel_zero_points()) if per_channel else ()
        _add(
            digest,
            f"{name}{'' if per_channel else (value.q_scale(), value.q_zero_point())}",
            (value.int_repr(), *scale),
        )
    else:
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
