"""`module:function` references in params.yaml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module

from windtunnel.core.endings import users_place
from windtunnel.core.errors import UserError, unknown_word
from windtunnel.core.repository import code_folders
from windtunnel.core.watched import limited

# What code of the user's may raise. SystemExit too: `sys.exit(0)` in it must not look like a success of ours.
FOREIGN = (Exception, SystemExit)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, cut where it is long; its type where it has none."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    try:
        text = str(error).strip()
    except FOREIGN:  # an exception of somebody else's that cannot be printed
        text = ""
    return (text or type(error).__name__).splitlines()[0][:200]


@contextmanager
def users_code(what: str, seconds: float | None = None, key: str = "") -> Iterator[None]:
    """Run code of the user's: what it raises becomes a UserError of one line that begins with `what`.

    `windtunnel check` gives it `seconds`, which `key` of params.yaml raises.
    """
    try:
        with limited(what, seconds, key) if seconds is not None else nullcontext():
            yield
    except (UserError, MemoryError):  # who runs out of memory is told what needs less
        raise
    except FOREIGN as error:
        if "can't allocate memory" in first_line(error):
            raise
        raise UserError(f"{what} raised {type(error).__name__}: {users_place(error)}{first_line(error)}") from error


def find_own_modules() -> None:
    """Let Python find the user's own modules: those beside params.yaml first, those of the repository after what is installed."""
    here, *others = map(str, code_folders())
    if here not in sys.path:
        sys.path.insert(0, here)
    sys.path += [folder for folder in others if folder not in sys.path]


def resolve(reference: str, where: str) -> Callable[..., object]:
    """The function named `module:function`; modules of the project and of its repository are found too.

    Raises UserError where the form is off, the module does not import or the function is not in it.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"{where}: '{reference}' is not of the form module:function")
    find_own_modules()
    try:
        module = import_module(module_name)
    except FOREIGN as error:  # whatever the user's module raises at import
        raise UserError(
            f"{where}: cannot import '{module_name}' ({type(error).__name__}: {first_line(error)})"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UserError(unknown_word(where, name, public, what=f"a function of {module_name}"))
    function: Callable[..., object] = found
    return function
