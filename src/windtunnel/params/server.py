"""What params.yaml says that decides no result, so that nothing which is resolved holds it: a server, and how long a model may take."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML

from windtunnel.core.layout import PARAMS_FILE


def configured_server() -> str | None:
    """`tracking.uri` of params.yaml in the current directory, None where it is not set."""
    uri: str | None = _block("tracking").get("uri")
    return uri


def configured_time_limit(block: str) -> dict[str, Any]:
    """`time_limit` of a block of params.yaml in the current directory, under its key; empty where it is not set."""
    return {key: value for key, value in _block(block).items() if key == "time_limit"}


def _block(name: str) -> dict[str, Any]:
    if not PARAMS_FILE.is_file():
        return {}  # of `windtunnel.assess` in a notebook
    raw = YAML(typ="safe", pure=True).load(PARAMS_FILE.read_text(encoding="utf-8"))
    return raw.get(name) or {}
