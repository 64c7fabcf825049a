"""The door of the Python API: every public function of `windtunnel` is called through it.

It needs nothing but the standard library until a function is called, so that `import windtunnel` stays quick.
"""

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import ParamSpec, TypeVar

import windtunnel
from windtunnel.core.errors import UserError, shown
from windtunnel.core.references import callers_place, first_line

P = ParamSpec("P")
R = TypeVar("R")
# Messages are written for params.yaml and its commands; a caller of the Python API reads the same of arguments.
_IN_ARGUMENTS = (
    (r"\bwindtunnel\.assess: ", ""),
    (r"`?\bdata\.samples\.n\b`?", "a larger x"),
    (r"`?\bdata\.labels\b`?", "y"),
    (r"\bdata\.class_names\b", "class_names"),
    (r"\bdata\.value_range says what they span", "scale them to [0, 1], or give uint8"),
    (r"\bdata\.resize and data\.channels change them", "give x in another shape"),
    (r"\bdata: (?=labels|a label|\d+ different)", "y: "),
    (r"\bdata: (?=two classes|the name)", "class_names: "),
    (r"\bdata: (?=\w)", "x: "),
    (r"[Ss]et model\.head: \{output: probability\}, or return", "Return"),
    (r"\bmodel\.output picks one of", "return one of"),
    (r", or correct model\.sha256", ""),
    (r"\bsanity\.profile\b", "sanity"),
    (r"`?\bsanity\.(\w+)(?::? (true|false))?`?", r"sanity={'\1': ...}"),
    (r"`?(?<!^)(?<!\.)\bbudget\.(steps|step_size)\b`?", r"the attack's budget={'\1': ...}"),
)
# The arguments that a line names: `set budget="L2 ..."`, `samples['n']`, `class_names`.
_MENTION = re.compile(r"""(?<![\w.'"])(?P<name>\w+)(?:=(?:\{[^}]*\}|"[^"]*"|\w+)|(?:\['?\w+'?\])+|(?<=_names)\b)""")


def public(value: object) -> object:
    """Return the value of a public name: functions are wrapped by the checks of this module."""
    return _behind_door(value) if isinstance(value, types.FunctionType) else value


def _behind_door(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as callers see it.

    Arguments that are annotated as a path or as a class of ours are checked first. Inside, torch has its usual settings,
    whatever the caller is in the middle of. `sys.exit` in a caller's code, and what its functions raise, is a UserError.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = inspect.signature(function).bind(*args, **kwargs)
        with one_line(f"windtunnel.{function.__name__}"), usual_torch():
            for name, kind in _kinds(function).items():
                if name in bound.arguments:
                    bound.arguments[name] = _fitting(bound.arguments[name], kind, f"{function.__name__}: {name}")
            try:
                return function(*bound.args, **bound.kwargs)
            except UserError as error:
                if "x" not in bound.signature.parameters:  # load_params, which is given a params.yaml
                    raise
                raise type(error)(in_arguments(str(error), function)) from error

    return call


def in_arguments(line: str, function: Callable[..., object] | None = None) -> str:
    """Return advice or a refusal with arguments of a public function, of `assess` by default, in place of keys of params.yaml.

    `attacks.pgd.samples.n` is `attacks['pgd']['samples']['n']` for `assess` and `samples['n']` for the function of one attack.
    An argument that the function does not take is named with a function that takes it, a key without an argument with params.yaml.
    """
    from windtunnel.registry.plugins import families

    function, of_families = function or windtunnel.assess, families()
    parameters = inspect.signature(function).parameters
    # `verify` and `corrupt` are called as their stages are.
    renamed = {name: family.stage for name, family in of_families.items() if family.stage in parameters}

    def argument(match: re.Match[str]) -> str:
        if not match["key"] or ("." not in match["key"] and match.start()):  # a value, or a word of the text
            return match[0]
        block, *path = match["key"].split(".")
        if block not in {*of_families, "budget", "storage"}:
            return f"{match['key']} of params.yaml"
        if block in of_families and not parameters.keys() & of_families:
            block, *path = path[1:] or ["algorithm"]
        if block == "budget" and path and "eps" in parameters:
            block = {"epsilon": "eps"}.get(path.pop(0), "norm")
        return renamed.get(block, block) + "".join(f"[{key}]" if key.isdigit() else f"['{key}']" for key in path)

    def attributed(match: re.Match[str]) -> str:
        taker = _taker(match["name"], function)
        return match[0] if taker is function else f"{match[0]} of windtunnel.{taker.__name__}"

    for key, text in (*_IN_ARGUMENTS, (r"[Rr]un dvc repro(?: again)?", f"call windtunnel.{function.__name__} again")):
        line = re.sub(key, text, line)
    line = re.sub(_keys(), argument, line)
    line = re.sub(r"([Ss]et [\w'\[\]]+): (?=\S)", r"\1=", line)
    norm = r'norm="\1"' if "eps" in parameters else r'budget="\1 ..."'
    line = re.sub(r"budget=\{norm: (\w+), epsilon: \.\.\.\}", norm, line)
    line = _MENTION.sub(attributed, line)
    while (first := re.match(r"(\w+): ", line)) and _taker(first[1], function) is not function:
        line = line[first.end() :]
    if not {"algorithm", "budget"} & parameters.keys():  # autoattack has one algorithm
        line = re.sub(r", or choose another: [^;]*", "", line)
    return line[:1].upper() + line[1:] if line.startswith("call ") else line.replace(". call ", ". Call ")


def _taker(argument: str, function: Callable[..., object]) -> Callable[..., object]:
    """Return the function where it takes the argument or none does, else the public one that takes it."""
    takers = (function, windtunnel.attack, windtunnel.assess)
    return next((taker for taker in takers if argument in arguments_of(taker)), function)


@functools.cache
def arguments_of(function: Callable[..., object]) -> frozenset[str]:
    """Return the parameters of a public function, and the keys of the entries that it is given, as keywords or in maps."""
    from windtunnel.registry.plugins import families

    parameters = inspect.signature(function).parameters
    entries = (f for f in families().values() if {f.name, f.stage} & {*parameters, function.__name__})
    return frozenset({*parameters, *(key for family in entries for key in family.entry_type.model_fields)} - {"entry"})


@functools.cache
def _keys() -> str:
    """Return the pattern of a key of params.yaml, in `key`, and of a quoted value, which stays."""
    from windtunnel.registry.plugins import families

    # By a name that is put together: what a refusal says is no part of the key of any result, so this is no dependency.
    params = import_module(f"{windtunnel.__name__}.params.schema").Params
    blocks = {name: getattr(field.annotation, "model_fields", {}) for name, field in params.model_fields.items()}
    keys = [rf"{name}\.(?:{'|'.join(fields)})\b(?!\()" for name, fields in blocks.items() if fields]
    names = "|".join([*keys, "budget", *families()])
    return rf"(?<!\w)'[^']*'|\"[^\"]*\"|(?<![\w.])(?P<key>(?:{names})\b(?:\.[\w-]+)*)"


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Make a UserError of one line of whatever a caller's code raises in the block; a defect of ours keeps its traceback."""
    try:
        yield
    except SystemExit as error:
        raise UserError(f"{what}: code of yours called sys.exit({error.code!r})") from error
    except UserError as error:
        lines = str(error).splitlines()
        if len(lines) < 2:
            raise
        rest = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise type(error)("; ".join(lines[:3]) + rest) from error
    except Exception as error:
        from windtunnel.runtime.shutdown import as_user_error

        user_error = as_user_error(error)
        if user_error is None and (location := callers_place(error)):
            user_error = UserError(f"{what}: {location} {type(error).__name__}: {first_line(error)}")
        if user_error is None:
            raise
        raise user_error from error


@contextmanager
def usual_torch() -> Iterator[None]:
    """Run the block with gradients, without inference mode and autocast, and with float32 and the CPU as defaults."""
    torch = sys.modules.get("torch")
    if torch is None:  # nobody can have changed it
        yield
        return
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@functools.cache
def _kinds(function: Callable[..., object]) -> dict[str, type]:
    """Return, by parameter, Path or the class of ours that its annotation names."""
    kinds: dict[str, type] = {}
    module = sys.modules[function.__module__]
    for name, annotation in inspect.get_annotations(inspect.unwrap(function)).items():
        if annotation in ("Path", "Path | str", "str | Path", Path, Path | str):
            kinds[name] = Path
        elif name != "return":
            value = (
                getattr(module, annotation, None) if isinstance(annotation, str) else annotation
            )  # text if postponed
            origin = typing.get_origin(value)
            if isinstance(value, type) and origin is None and value.__module__.startswith("windtunnel."):
                kinds[name] = value
    return kinds


def _fitting(value: object, kind: type, what: str) -> object:
    if kind is Path:
        if not isinstance(value, str | Path) or "\0" in str(value):
            raise UserError(f"{what}: {shown(value)} ({type(value).__name__}) is no path; a text or a pathlib.Path is")
        return Path(value)
    if not isinstance(value, kind):
        description = "None" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{what}: is {description}; a windtunnel {kind.__name__} is needed")
    return value
