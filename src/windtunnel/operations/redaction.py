"""Remove credentials from files that leave the project: evidence packs, and what is uploaded to MLflow."""

import json
import os
from collections.abc import Iterator, Mapping

from windtunnel.boundary.text import parse_yaml, yaml_text
from windtunnel.records.files import parse_own_json
from windtunnel.runtime.credentials import secrets_in, without_credentials, without_secrets

TEXT_SUFFIXES = frozenset({".yaml", ".lock", ".json", ".html", ".md"})


def secrets_of(params: Mapping[str, object]) -> set[str]:
    """Return every password and token of an address in `params` or in the environment."""
    addresses = [*_texts(params), *(os.environ.get(f"MLFLOW_{kind}_URI", "") for kind in ("TRACKING", "REGISTRY"))]
    return {secret for text in addresses if "://" in text for secret in secrets_in(text)}


def redacted_file(text: str, suffix: str, secrets: set[str]) -> str:
    """Return the text of a file without credentials; unchanged, byte for byte, where it holds none.

    YAML and JSON are parsed, since quoting and folding hide parts of an address; a YAML file that holds a credential
    loses its comments.
    """
    if suffix in {".yaml", ".lock"} and "://" in text:
        if (clean := _cleaned(content := parse_yaml(text, suffix), secrets)) != content:
            return yaml_text(clean, plain=True, default_flow_style=False, sort_base_mapping_type_on_output=False)
        return without_credentials(text)  # addresses in comments
    if suffix == ".json":
        clean = _cleaned(content := parse_own_json(text), secrets)
        return text if clean == content else json.dumps(clean, indent=2) + "\n"
    return without_secrets(text, secrets)  # generated pages, whose scripts may look like queries of an address


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in (
        content.items() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    ):
        yield from _texts(part)


def _cleaned(content: object, secrets: set[str]) -> object:
    if isinstance(content, str):
        return without_secrets(without_credentials(content), secrets)
    if isinstance(content, Mapping):
        return {_cleaned(key, secrets): _cleaned(value, secrets) for key, value in content.items()}
    return [_cleaned(value, secrets) for value in content] if isinstance(content, list) else content
