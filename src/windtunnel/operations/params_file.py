"""Lines written into params.yaml for the user: comments, order and quotes stay, and nothing else changes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from windtunnel.boundary.params_file import params_text, parse_params
from windtunnel.core.errors import UserError
from windtunnel.records.files import replacing


def as_yaml(content: object) -> str:
    """Short maps and lists on a line; what was read from a file stays as it was there."""
    text = io.StringIO()
    _yaml().dump(content, text)
    return text.getvalue()


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Make `change` to the content of `path`, which it is given as nested maps.

    Raises UserError, and writes nothing, where the text would say more than that: entries that are an alias (*) of one another
    change together.
    """
    before = params_text(path)
    # Without aliases, each entry changes alone.
    wanted = json.loads(json.dumps(parse_params(before, str(path)), default=str))
    change(wanted)
    content = _yaml().load(before)
    change(content)
    text = as_yaml(content)
    if json.loads(json.dumps(parse_params(text, str(path)), default=str)) != wanted:
        raise UserError(
            f"{path}: an entry that is written as an alias (*) of another cannot be changed alone; write it out, or "
            f"take the other's keys over with <<"
        )
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True  # DVC reads no `{factory: nets:Net}` without them
    yaml.default_flow_style = None
    yaml.width = 140
    return yaml
