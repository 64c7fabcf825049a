"""Code that may run for the sake of one model: only what the user's own params.yaml says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from windtunnel.boundary.limits import bounded
from windtunnel.core.errors import UserError
from windtunnel.params.entry import Value
from windtunnel.params.model import Interface, Model, OtherModel


@dataclass(frozen=True, slots=True)
class Trust:
    """The word of params.yaml on one model: modules of the user's to call, and whether its file may be a pickle.

    Nothing of it is ever read from a file beside a model, which may come from a stranger. `plugin` is the plug-in that
    `model.source` names, `twin` the word on `model.twin`. `key` is where it stands;
    `time_limit` is how long the model may take for an answer in `windtunnel check`, in seconds; in a stage ten times as long.
    `interface`: limits of what a predict function calls.
    """

    factory: str | None = None
    function: str | None = None
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    allow_pickle: bool = False
    plugin: str | None = None
    key: str = "model"
    time_limit: float = 60.0
    twin: Trust | None = None
    interface: Interface = field(default_factory=Interface)

    def required(self, name: str, why: str) -> str:
        """Return `factory` or `function`. Raises UserError where params.yaml does not say it."""
        value: str | None = getattr(self, name)
        if value is None:
            raise UserError(f"{self.key}.{name}: is required: {why}, and what is called is never taken from a file")
        return value

    def bounded(self, what: str) -> AbstractContextManager[None]:
        """Limit time and memory of a call in the block; `what` follows the key in messages (see `limits.bounded`)."""
        return bounded(f"{self.key}{what}", self.time_limit, f"{self.key}.time_limit")


NOTHING = Trust()


def trust_of(model: Model | OtherModel, key: str = "model") -> Trust:
    """Return what params.yaml allows at `key`."""
    common = (model.factory, model.function, model.kwargs, model.allow_pickle)
    if isinstance(model, OtherModel):
        return Trust(*common, key=key, time_limit=Model().time_limit)
    twin = trust_of(model.twin_model, f"{key}.twin") if model.twin_model else None
    return Trust(*common, model.source, key, model.time_limit, twin, model.interface)


def require_sha256(model: Model, digest: str, what: str) -> None:
    """Raise UserError unless `digest`, that of the file `what`, is the one that `model.sha256` asks for."""
    if model.sha256 and digest != model.sha256.lower():
        raise UserError(f"model.sha256: {what} has {digest}, not {model.sha256}")
