"""Work as bytes: what a worker is sent once, the model and the samples in it, and whether it would compute the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import cloudpickle
import torch

from windtunnel.core.errors import UserError

# What may decide bits of a result: a worker that has others of these computes something else.
_DECIDING = ("windtunnel", "torch", "numpy", "torchattacks", "foolbox", "auto-LiRPA")


class StaysHereError(TypeError):
    """What cannot be sent to another process, with the reason."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Work, and where modules are found."""

    path: tuple[str, ...]
    content: bytes

    def open(self) -> Callable[[Any], Any]:
        """The work, in a worker."""
        for place in reversed(self.path):
            if place not in sys.path:
                sys.path.insert(0, place)
        torch.set_num_threads(1)  # sums differ in their last bits with the number of threads
        return cast(Callable[[Any], Any], cloudpickle.loads(self.content))


def packed(work: Callable[[Any], Any]) -> Parcel:
    """`work` with all it holds. Raises StaysHereError for what only this process can do."""
    try:
        content = cloudpickle.dumps(work)
    except Exception as error:  # whatever a model of the user's raises when it is pickled
        raise StaysHereError(str(error) or type(error).__name__) from error
    return Parcel(tuple(sys.path), content)


def versions() -> dict[str, str]:
    """The public versions of what decides results, and the kind of device that is there."""
    found = {}
    for name in _DECIDING:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "absent"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {**found, "device": accelerator.type if accelerator else "cpu"}


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> None:
    """Raise UserError, in one line, where a worker would compute with other versions than this process."""
    different = [f"{key} {theirs.get(key)} (here {mine[key]})" for key in mine if theirs.get(key) != mine[key]]
    if different:
        raise UserError(
            f"{who} has {', '.join(different)}: its results would be others; install the same versions there"
        )
