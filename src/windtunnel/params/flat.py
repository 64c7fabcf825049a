"""params.yaml as flat names, the form in which DVC shows it and MLflow keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

from windtunnel.core.credentials import without_credentials


def flat_params(path: Path) -> dict[str, str]:
    """`budget.epsilon` -> `8/255`: every value of a params.yaml, as written (what `dvc params diff` shows too).

    But for passwords in addresses, which are to be logged nowhere.
    """
    return dict(_flat(YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))))


def _flat(raw: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(raw, dict) and raw:
        for key, value in raw.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, without_credentials(str(raw))
