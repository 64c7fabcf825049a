"""Work as bytes: what a worker is sent once, the model and the samples in it, and whether it would compute the same.

Workers import this module: it must not import torch, which takes longer than many a piece of work.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors import inside_a_unit
from windtunnel.runtime.executors.allocator import keep_freed_memory
from windtunnel.runtime.executors.mapped_tensors import mapped, place_of
from windtunnel.runtime.shutdown import as_user_error

# What may decide bits of a result: a worker that has others of these computes something else.
_DECIDING = ("windtunnel", "torch", "numpy", "torchattacks", "foolbox", "auto-LiRPA", "maraboupy", "imagecorruptions")


class StaysHereError(TypeError):
    """What cannot be sent to another process, with the reason."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Work, and where modules are found."""

    path: tuple[str, ...]
    content: bytes

    def open(self) -> Callable[[Any], Any]:
        """The work, in a worker."""
        import cloudpickle

        for place in reversed(self.path):
            if place not in sys.path:
                sys.path.insert(0, place)
        work: Callable[[Any], Any] = cloudpickle.loads(self.content)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # sums differ in their last bits with the number of threads
        return work


def packed(work: Callable[[Any], Any], *, for_this_machine: bool = False) -> Parcel:
    """`work` with all it holds; for this machine without what lies in mapped files, whose places are told instead.

    Raises StaysHereError for what only this process can do.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules.get("torch")
            if for_this_machine and torch and type(obj) is torch.Tensor and (place := place_of(obj)):
                return mapped, (*place, obj.dtype, tuple(obj.shape))
            return super().reducer_override(obj)

    try:
        with io.BytesIO() as file:
            Pickler(file).dump(work)
            content = file.getvalue()
    except Exception as error:  # whatever a model of the user's raises when it is pickled
        raise StaysHereError(str(error) or type(error).__name__) from error
    return Parcel(tuple(sys.path), content)


class Desk:
    """In a worker: the work, and the answers to what it is asked, as bytes.

    As bytes, because tensors in a queue travel through shared memory, of which a container has little.
    """

    def __init__(self) -> None:
        self._work: Callable[[Any], Any] | None = None
        keep_freed_memory()

    def open(self, parcel: Parcel) -> bytes:
        """("ready", None), or ("raised", the exception)."""
        self._work = None  # two of them may be more than the memory holds
        return self._answer("ready", lambda: setattr(self, "_work", parcel.open()))

    def do(self, unit: object) -> bytes:
        """("done", the result), or ("raised", the exception)."""
        work = self._work
        assert work is not None
        return self._answer("done", lambda: work(unit))

    def _answer(self, word: str, ask: Callable[[], Any]) -> bytes:
        try:
            with inside_a_unit():
                return pickle.dumps((word, ask()))
        except Exception as error:  # whatever the work raises is raised where it was asked for
            return _as_bytes(error)


def _as_bytes(error: Exception) -> bytes:
    """What goes wrong, with the lines in which it did; where the user's code is to blame, as the one line that says so."""
    told = as_user_error(error) or error
    told.add_note("in a worker: " + "".join(traceback.format_exception(error)))
    try:
        found = pickle.dumps(("raised", told))
        pickle.loads(found)  # an exception may be written and not be read again
    except Exception:
        found = pickle.dumps(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
    return found


def versions() -> dict[str, str]:
    """The public versions of what decides results, the instructions of the processor and the accelerator that is there."""
    import torch

    found = {}
    for name in _DECIDING:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "absent"
    found["processor"] = torch.backends.cpu.get_cpu_capability()  # sums are of as many parts as its registers hold
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = accelerator.type if accelerator else "cpu"
    return {**found, "device": torch.cuda.get_device_name() if kind == "cuda" else kind}


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> None:
    """Raise UserError, in one line, where a worker would compute with other versions than this process."""
    different = [f"{key} {theirs.get(key)} (here {mine[key]})" for key in mine if theirs.get(key) != mine[key]]
    if different:
        raise UserError(
            f"{who} has {', '.join(different)}: its results would be others; use the same versions and devices there"
        )
