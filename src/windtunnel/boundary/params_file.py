"""Read params.yaml without validating it, which needs every family: the only code that opens and parses it."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, MappingNode

from windtunnel.boundary.files import path_text, read_text
from windtunnel.boundary.text import parse_map, parse_yaml
from windtunnel.core.errors import UserError
from windtunnel.records.layout import PARAMS_FILE
from windtunnel.runtime.credentials import without_credentials


def read_params(path: Path) -> dict[str, object]:
    """Read params.yaml without validating it. Raises UserError for what is no map of keys."""
    return parse_map(params_text(path), path_text(path))


def params_text(path: Path) -> str:
    """Read the text of a params.yaml. Raises UserError."""
    try:
        return read_text(path)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise UserError(f"{error}. Run windtunnel where params.yaml is, or name it with --params") from error


def override(raw: dict[str, object], key: str, text: str, where: str) -> None:
    """Set a dotted key of the content of a params.yaml to a value written as YAML, in place.

    Raises UserError where a block above the key is none, or the value is no YAML.
    """
    *parents, last = key.split(".")
    block = raw
    for part in parents:
        inner = block.get(part)
        if not isinstance(inner, dict):
            state = "is not there" if inner is None else f"is '{inner}', no map of keys"
            raise UserError(f"{where}: {key}: {part} {state} in params.yaml")
        block = inner
    block[last] = parse_yaml(text, f"{where}: {key}={text[:60]}")


def flat_params(path: Path) -> dict[str, str]:
    """Return `budget.epsilon` -> `8/255`: every value of a params.yaml, as written (what `dvc params diff` shows too).

    Passwords in addresses are left out. Raises UserError.
    """
    return dict(flat_texts(read_params(path)))


def configured_server() -> str | None:
    """Return `tracking.uri` of params.yaml in the current directory, None where it is not set.

    It decides no result, so that nothing which is resolved holds it.
    """
    uri: str | None = _block("tracking").get("uri")
    return uri


def configured_pictures() -> str:
    """Return `report.pictures` of params.yaml in the current directory: it holds for whatever is drawn there."""
    if not PARAMS_FILE.is_file():
        return "shown"
    return _pictures(PARAMS_FILE.absolute(), PARAMS_FILE.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _pictures(path: Path, changed: int) -> str:
    block = read_params(path).get("report")
    return str(block.get("pictures", "shown")) if isinstance(block, dict) else "shown"


def configured_limits(block: str) -> dict[str, Any]:
    """Return `time_limit` and `interface` of a block of params.yaml in the current directory, by key, where they are set.

    They decide no result, so that nothing which is resolved holds them.
    """
    return {key: value for key, value in _block(block).items() if key in {"time_limit", "interface"}}


def entry_names(raw: dict[str, object], family: str) -> list[str]:
    """Return the names of the entries of a family in an unvalidated params.yaml that can name a folder; none without a map."""
    block = raw.get(family)
    names = map(str, block) if isinstance(block, dict) else ()
    return [name for name in names if name == Path(name).name]


def lines_of(path: Path) -> Callable[[Sequence[str]], int]:
    """Return a function from nested keys of a params.yaml to their line, from 1; of the last that is there. Raises UserError."""
    root = YAML(typ="safe", pure=True).compose(params_text(path))

    def line_of(keys: Sequence[str]) -> int:
        node, line = root, 1
        for key in keys:
            pairs = node.value if isinstance(node, MappingNode) else ()
            inner = next(((name, value) for name, value in pairs if name.value == key), None)
            if inner is None:
                break
            line, node = inner[0].start_mark.line + 1, inner[1]
        return line

    return line_of


def _block(name: str) -> dict[str, Any]:
    if not PARAMS_FILE.is_file():
        return {}  # of `windtunnel.assess` in a notebook
    block = read_params(PARAMS_FILE).get(name)
    return block if isinstance(block, dict) else {}


def flat_texts(raw: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of each value in nested maps, without passwords in addresses."""
    if isinstance(raw, dict) and raw:
        for key, value in raw.items():
            yield from flat_texts(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, without_credentials(str(raw))
