"""Parse texts that come from outside, with limits on size, depth, aliases and digits.

What passes is made of dictionaries, lists, text, numbers, booleans, dates and None.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.docinfo import DocInfo
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from windtunnel.boundary.files import TEXT_BYTES, named, path_text, read_text
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError

T = TypeVar("T")
MAX_VALUES = 100_000  # once aliases and merge keys are written out
MAX_SEPARATORS = 30_000  # commas and lines of a text that the pure parser reads, in a few seconds
MAX_DEPTH = 64
MAX_DIGITS = 1000  # of one number
MAX_BRACKETS = 1000  # that open a list or a map: in all, in a text that libyaml may read; at one place, in any YAML
_LONG_INDENT = re.compile(r"[ \t?:-]{200}")  # of a text that nests deeply without brackets
_BRACKETS = re.compile(r"[\[\]{}]")
_JSON_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)  # a text, or what opens or closes a list or map


def read_yaml(path: Path, *, fast: bool = False) -> object:
    """Read and parse a YAML file; see `read_text` and `parse_yaml`. Raises UserError."""
    return parse_yaml(read_text(path), path_text(path), fast=fast)


def parse_yaml(text: str, where: str, *, fast: bool = False) -> object:
    """Parse YAML 1.2, as DVC reads it, so that `1e-3` is a number for both.

    Args:
        text: one document.
        where: the file, key or option that it comes from, for the message.
        fast: by libyaml, in a fifth of the time, where the text cannot nest deeply; it reads YAML 1.1.

    Raises:
        UserError: in one line, for what is no YAML, is nested too deeply, holds itself, or is too large once aliases and
            merge keys are written out.
    """
    # The pure parser's time grows with the square of open brackets, up to the recursion limit, which some libraries raise.
    if _nesting(_BRACKETS, text) >= MAX_BRACKETS:
        raise UserError(f"{where}: is nested too deeply; {MAX_DEPTH} levels at most")
    if not fast and (count := text.count(",") + text.count("\n")) > MAX_SEPARATORS:
        raise UserError(f"{where}: has {count} commas and lines; {MAX_SEPARATORS} at most")
    try:
        # libyaml recurses in C: deep nesting would end the process.
        fast = fast and text.count("[") + text.count("{") < MAX_BRACKETS and not _LONG_INDENT.search(text)
        yaml = YAML(typ="safe", pure=not fast)
        yaml.doc_infos.append(DocInfo())  # where the scanner notes a %YAML directive
        constructor, parser = yaml.get_constructor_parser(text)
        node = (parser if fast else yaml.composer).get_single_node()
        if node is None:
            return None
        if (size := _expanded_size(node, {}, 1, where)) > MAX_VALUES:
            raise UserError(f"{where}: its aliases (*) expand to {size:.3g} values; {MAX_VALUES} at most")
        content: object = constructor.construct_document(node)
    except UserError:
        raise
    except RecursionError as error:
        raise UserError(f"{where}: is nested too deeply, or holds itself; {MAX_DEPTH} levels at most") from error
    except Exception as error:  # values such as 2020-99-99 raise ValueError, and ruamel raises IndexError and the like
        raise UserError(f"{where}: not YAML: {_yaml_mistake(error)}") from error
    return content


def parse_map(text: str, where: str) -> dict[str, object]:
    """Parse YAML that must be a map of keys. Raises UserError."""
    return _map(parse_yaml(text, where), where)


def edit_yaml(text: str, where: str) -> Any:
    """Parse YAML that must be a map; what `yaml_text` writes of it keeps comments, order and quotes. Raises UserError."""
    parse_map(text, where)
    yaml = YAML()
    yaml.preserve_quotes = True  # DVC reads no `{factory: nets:Net}` without them
    return yaml.load(text)


def yaml_text(content: object, *, plain: bool = False, **style: object) -> str:
    """Write YAML. plain: of built-in types alone. style: attributes of ruamel's YAML, such as `width`."""
    yaml = YAML(typ="safe", pure=True) if plain else YAML()
    for name, value in style.items():
        setattr(yaml, name, value)
    yaml.dump(content, text := io.StringIO())
    return text.getvalue()


def parse_json(text: str | bytes, where: str, *, max_bytes: int = TEXT_BYTES) -> Json:
    """Parse JSON. Raises UserError for what is none, is too large, is nested too deeply or holds numbers of too many digits."""
    if len(text) > max_bytes:
        raise UserError(f"{where}: has {len(text)} characters; {max_bytes} at most")
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        if _nesting(_JSON_NESTING, text) > MAX_DEPTH:
            raise UserError(f"{where}: is nested too deeply; {MAX_DEPTH} levels at most")
        content: Json = json.loads(text, parse_int=_integer)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError among them
        raise UserError(f"{where}: not JSON ({' '.join(str(error).split())[:200]})") from error
    return content


def read_json_map(path: Path, *, where: str = "", max_bytes: int = TEXT_BYTES) -> dict[str, Json]:
    """Read a JSON file of a user's or a library's that must be a map of keys. Raises UserError."""
    name = named(path, where)
    return _map(parse_json(read_text(path, where=where, max_bytes=max_bytes), name, max_bytes=max_bytes), name)


def _map(content: T, where: str) -> dict[str, T]:
    if not isinstance(content, dict):
        raise UserError(f"{where}: must be a map of keys, got {type(content).__name__}")
    return content


def _nesting(pattern: re.Pattern[str], text: str) -> int:
    """Return the deepest nesting of lists and maps among the matches of `pattern`, without recursion.

    The parser of `json` recurses in C: where a library has raised the recursion limit, deep nesting ends the process.
    """
    depth = deepest = 0
    for token in pattern.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; {MAX_DIGITS} at most")
    return int(digits)


def _expanded_size(node: Node, sizes: dict[int, int], depth: int, where: str) -> int:
    """Count the values that a node stands for once aliases and merge keys are written out, without writing them out.

    Raises UserError for a node that is nested too deeply, holds itself, or is a number of too many digits.
    """
    if isinstance(node, ScalarNode):
        if len(node.value) > MAX_DIGITS and str(node.tag).endswith((":int", ":float")):
            line = node.start_mark.line + 1
            raise UserError(f"{where}: line {line}: a number of {len(node.value)} digits; {MAX_DIGITS} at most")
        return 1
    if depth > MAX_DEPTH or sizes.get(id(node)) == 0:
        raise UserError(f"{where}: is nested too deeply, or holds itself; {MAX_DEPTH} levels at most")
    if id(node) not in sizes:
        sizes[id(node)] = 0  # being counted
        sizes[id(node)] = 1 + sum(_expanded_size(child, sizes, depth + 1, where) for child in _children(node))
    return sizes[id(node)]


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                yield key
            yield value
    elif isinstance(node, SequenceNode):
        yield from node.value


def _yaml_mistake(error: Exception) -> str:
    """Return the parser's message without the lines of the file that it repeats."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:200]
    return f"{' '.join(str(problem).split())[:160]} (line {mark.line + 1}, column {mark.column + 1})"
