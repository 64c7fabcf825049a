"""Where params.yaml says the tracking server is: an address decides no result, so nothing that is resolved holds it."""

from __future__ import annotations

from ruamel.yaml import YAML

from windtunnel.core.layout import PARAMS_FILE


def configured_server() -> str | None:
    """`tracking.uri` of params.yaml in the current directory, None where it is not set."""
    raw = YAML(typ="safe", pure=True).load(PARAMS_FILE.read_text(encoding="utf-8"))
    tracking = raw.get("tracking") or {}
    uri: str | None = tracking.get("uri")
    return uri
