"""Work as bytes, sent to each worker once with the model and the samples, and the comparison of versions.

Workers import this module: it must not import torch, which takes longer than many a piece of work.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.core.errors import UserError
from windtunnel.core.machine import system_text
from windtunnel.core.references import import_without_bytecode
from windtunnel.core.threads import compute_with_one_torch_thread
from windtunnel.runtime.placement import inside_a_unit
from windtunnel.runtime.shutdown import as_user_error

if TYPE_CHECKING:
    from torch import Tensor, dtype


# Packages that decide bits of a result: a worker with other versions is refused.
_DECIDING = ("windtunnel", "torch", "numpy", "torchattacks", "foolbox", "auto-LiRPA", "maraboupy", "imagecorruptions")


class NotPicklableError(TypeError):
    """Raised for work that cannot be sent to another process, with the reason."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Pickled work, and the path on which its modules are found."""

    path: tuple[str, ...]
    content: bytes

    def unpack(self) -> Callable[[Any], Any]:
        """Unpickle the work, in a worker, and compute with one thread from here on."""
        import cloudpickle

        for folder in reversed(self.path):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        import_without_bytecode()
        work: Callable[[Any], Any] = cloudpickle.loads(self.content)
        compute_with_one_torch_thread()
        return work


def pack(work: Callable[[Any], Any], *, for_this_machine: bool = False) -> Payload:
    """Pickle `work` with all it refers to; for this machine, tensors in mapped files go by their location instead.

    Raises NotPicklableError for work that only this process can do.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            torch = sys.modules.get("torch")
            if for_this_machine and torch and type(obj) is torch.Tensor and (location := mapped_location(obj)):
                return mapped, (*location, obj.dtype, tuple(obj.shape))
            return super().reducer_override(obj)

    try:
        with io.BytesIO() as file:
            Pickler(file).dump(work)
            content = file.getvalue()
    except Exception as error:  # whatever a model of the user's raises when it is pickled
        raise NotPicklableError(str(error) or type(error).__name__) from error
    return Payload(tuple(sys.path), content)


class WorkerServer:
    """Server in a worker: keeps the work and returns pickled results.

    Bytes, because tensors in a queue travel through shared memory, of which a container has little.
    """

    def __init__(self) -> None:
        self._work: Callable[[Any], Any] | None = None
        retain_freed_memory()

    def load(self, payload: Payload) -> bytes:
        """Load the work; return ("ready", None) or ("raised", the exception), pickled."""
        self._work = None  # two of them may be more than the memory holds
        return self._answer("ready", lambda: setattr(self, "_work", payload.unpack()))

    def do(self, unit: object) -> bytes:
        """Compute a unit; return ("done", the result) or ("raised", the exception), pickled."""
        work = self._work
        assert work is not None
        return self._answer("done", lambda: work(unit))

    def _answer(self, kind: str, call: Callable[[], Any]) -> bytes:
        try:
            with inside_a_unit():
                return pickle.dumps((kind, call()))
        except Exception as error:  # whatever the work raises is raised where it was asked for
            return _as_bytes(error)


def unpickled(content: bytes) -> Any:
    """Load a message of a worker or a driver of ours. Raises what its classes raise."""
    return pickle.loads(content)


def _as_bytes(error: Exception) -> bytes:
    """Pickle an exception with its traceback as a note; an error of the user's code becomes its one line."""
    raised = as_user_error(error) or error
    raised.add_note("in a worker: " + "".join(traceback.format_exception(error)))
    try:
        content = pickle.dumps(("raised", raised))
        unpickled(content)  # an exception may be written and not be read again
    except Exception:
        content = pickle.dumps(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
    return content


def versions() -> dict[str, str]:
    """Return the public versions of the packages that decide results, the processor's instruction set and the accelerator."""
    import torch

    from windtunnel.records.artifacts import package_version

    names = {name: package_version(name) or "absent" for name in _DECIDING}
    names["processor"] = torch.backends.cpu.get_cpu_capability()  # sums are of as many parts as its registers hold
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = accelerator.type if accelerator else "cpu"
    return {**names, "device": torch.cuda.get_device_name() if kind == "cuda" else kind}


def require_equal(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> None:
    """Raise UserError, in one line, where a worker would compute with other versions than this process."""
    different = [f"{key} {theirs.get(key)} (here {mine[key]})" for key in mine if theirs.get(key) != mine[key]]
    if different:
        raise UserError(
            f"{who} has {', '.join(different)}: its results would be others; use the same versions and devices there"
        )


MIN_BYTES = 2**20  # smaller tensors are sent as values
_MAPS = Path("/proc/self/maps")


def mapped_location(tensor: Tensor) -> tuple[str, int] | None:
    """Return (file, offset in bytes) of the values of `tensor`; None where they are in no file that others can open."""
    size = tensor.numel() * tensor.element_size()
    if size < MIN_BYTES or not tensor.is_contiguous() or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    try:
        lines = system_text(_MAPS).splitlines()
    except OSError:  # not Linux
        return None
    address = tensor.data_ptr()
    for line in lines:
        span, _, offset, _, inode, *path = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            try:  # a file without a name has one here that is nobody's, or another's
                is_there = bool(path) and os.stat(path[0]).st_ino == int(inode)
            except OSError:
                is_there = False
            return (path[0], int(offset, 16) + address - low) if is_there and address + size <= high else None
    return None


def mapped(file: str, offset: int, kind: dtype, shape: tuple[int, ...]) -> Tensor:
    """Map the tensor at this location, copy on write."""
    import torch

    from windtunnel.core.scratch import map_file

    size = math.prod(shape) * kind.itemsize
    return map_file(file, torch.uint8, (size,), mode="c", offset=offset).view(kind).view(shape)


# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (malloc.h), bytes; the second at its maximum. With the defaults the memory of each
# batch is returned to the system and requested again: EvoBA on LeNet5 took 1.6 times the processor time, in page faults.
_MALLOC = {-1: 256 * 2**20, -3: 32 * 2**20}


def retain_freed_memory() -> None:
    """Set both thresholds with mallopt(3), where the C library is glibc."""
    with suppress(AttributeError):
        for parameter, size in _MALLOC.items():
            ctypes.CDLL(None).mallopt(parameter, size)
