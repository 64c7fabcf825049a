"""Construction and call of a library's attack, for metadata.json and for a user's invoker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from windtunnel.core.errors import UserError
from windtunnel.core.references import resolve


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """One call of a library's attack, all names the library's own.

    attack: its class or function. built: the constructor's arguments beside the model. options: further arguments of the call.
    inputs: float32 (B, C, H, W) in [0, 1]; labels: int64 (B,); targets: int64 (B,), the wanted classes, None untargeted; all
    on the model's device.
    """

    attack: Callable[..., object]
    built: Mapping[str, object]
    inputs: Tensor
    labels: Tensor
    targets: Tensor | None
    options: Mapping[str, object]

    def recorded(self, effective: Mapping[str, object]) -> dict[str, object]:
        """`call_kwargs` of metadata.json: `effective`, the arguments with the library's defaults, and our additions."""
        batch = {"inputs": self.inputs, "labels": self.labels, "targets": self.targets}
        tensors = {key: value for key, value in batch.items() if value is not None}
        return {**effective, **self.built, **self.options, **tensors}


# The user's own way from a call and the model to the perturbed inputs, float32 (B, C, H, W).
Invoke: TypeAlias = Callable[[LibraryCall, nn.Module], Tensor]


def invoker_of(where: str, reference: str | None) -> Invoke | None:
    """Return the function that `invoker: module:function` names, held to its shape; None where there is none.

    Raises UserError where it cannot be found, or, when it is called, for a result that is not a tensor like the inputs.
    """
    if reference is None:
        return None
    function = cast(Invoke, resolve(reference, f"{where}.invoker"))

    def checked(call: LibraryCall, model: nn.Module) -> Tensor:
        result: object = function(call, model)
        if not isinstance(result, Tensor) or result.shape != call.inputs.shape:
            got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise UserError(f"{where}.invoker: {reference} returned {got}, not a tensor {tuple(call.inputs.shape)}")
        return result

    return checked
