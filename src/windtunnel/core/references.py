"""`module:function` references in params.yaml."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from windtunnel.core.errors import UserError, unknown_word


def resolve(reference: str, where: str) -> Callable[..., object]:
    """The function named `module:function`; modules beside params.yaml are found too.

    Raises UserError where the form is off, the module does not import or the function is not in it.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"{where}: '{reference}' is not of the form module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the user's module raises at import
        raise UserError(f"{where}: cannot import '{module_name}' ({type(error).__name__}: {error})") from error
    found = getattr(module, name, None)
    if not callable(found):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UserError(unknown_word(where, name, public, what=f"a function of {module_name}"))
    function: Callable[..., object] = found
    return function
