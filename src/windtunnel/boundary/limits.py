"""Call a user's code, or a library on a user's file, with limits on time and memory; whatever it raises is one line."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import psutil

from windtunnel.core.errors import OutOfTimeError, UserError
from windtunnel.core.machine import memory_limit, time_limit
from windtunnel.core.references import limit_imports, users_code
from windtunnel.runtime.shutdown import is_working
from windtunnel.runtime.supervised import is_watched, limited

MEMORY_SHARE = 0.8  # of the bytes that are free
_INSIDE = ContextVar("inside", default=False)  # of a block of `_within`


@contextmanager
def bounded(what: str, seconds: float, key: str, *, memory: int | None = None) -> Iterator[None]:
    """Load, build, export or try a model or function of a user's inside the block, with limits.

    `windtunnel check` ends a call that takes longer than `seconds`, a stage one that takes ten times as long, whatever code
    it is in. Elsewhere, as in a notebook, Python code is interrupted; a call inside a library's C code ends first.

    Args:
        what: what is called, with its key of params.yaml, for the message.
        seconds: the time limit.
        key: the key of params.yaml that raises the limit.
        memory: the most bytes it may take beside what the process has; a share of what is free by default.

    Raises:
        UserError: in one line, for whatever the code raises, `sys.exit` included, and for what exceeds a limit.
    """
    with users_code(what), _within(what, seconds, key, memory):
        yield


@contextmanager
def _within(what: str, seconds: float, key: str, memory: int | None = None) -> Iterator[None]:
    allowed = int(psutil.virtual_memory().available * MEMORY_SHARE) if memory is None else memory
    alone = not is_watched() and not is_working()
    inside = _INSIDE.set(True)
    with limited(what, seconds, key):
        try:
            with memory_limit(allowed), time_limit(time.monotonic() + seconds if alone else math.inf):
                yield
        except OutOfTimeError as error:
            raise UserError(f"{what} has not answered in {seconds:g} s; {key} gives it more") from error
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            raise UserError(
                f"{what} needs more than {allowed / 1e9:.1f} GB of memory, which is what is free"
            ) from error
        finally:
            _INSIDE.reset(inside)


@contextmanager
def _limited_import(what: str) -> Iterator[None]:
    """Import code of users or plug-ins under the limits of a model; inside `bounded` those of the block hold."""
    if _INSIDE.get():
        yield
        return
    from windtunnel.boundary.params_file import configured_limits

    seconds: object = None
    with suppress(UserError):  # whoever reads params.yaml next says what is wrong with it
        seconds = configured_limits("model").get("time_limit")
    with _within(what, seconds if isinstance(seconds, int | float) and 0 < seconds < 1e6 else 60.0, "model.time_limit"):
        yield


limit_imports(_limited_import)
