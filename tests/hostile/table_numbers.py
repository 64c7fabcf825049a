"""Rows of bad numbers: every numeric key of params.yaml with numbers that no run can use."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.harness import BASE
from tests.hostile.table import Row, text

# As they stand in the file; each hung, was taken for 1, or was repeated whole at some time.
_VALUES = {
    "a fraction without end": "1/1e999999999", "a quoted fraction": "'1/1e999999999'", "a quoted exponent": "'1e999999999'",
    "a small exponent": "'1e-999999999'", "100,000 digits": "9" * 100_000, "100,000 quoted digits": "'" + "9" * 100_000 + "'",
    "100,000 hex digits": "0x" + "f" * 100_000, "a boolean": "true", "a list": "[1, [2]]", "2^70 below zero": str(-(2**70)),
    "underscores": "'1e9_999_999'", "a date": "2020-01-01", "another script": "'१२'x", "digits of another script": "'१२'",
}  # fmt: skip
# What the line holds where the file's text is refused before any key is known.
_WORDS = {
    "100,000 digits": ("a number of 100000 digits; 1000 at most",), "100,000 hex digits": ("a number of 100002 digits; 1000 at most",),
    "another script": ("not YAML",),
}  # fmt: skip
_KEYS = [
    "seed", "budget.epsilon", "data.samples.n", "data.samples.seed", "data.test_fraction", "data.time_limit", "model.time_limit",
    "model.train.epochs", "model.train.learning_rate", "clean.ci_level", "clean.calibration_bins", "sanity.samples", "sanity.queries",
    "gate.minimum_samples", "attacks.fgsm.batch_size", "attacks.fgsm.restarts", "attacks.fgsm.eot",
]  # fmt: skip


def rows_of_numbers() -> Iterator[Row]:
    for key in _KEYS:
        for name, value in _VALUES.items():
            words = _WORDS.get(name, (key,)) if name != "2^70 below zero" else (key.partition(".")[0],)
            yield Row(f"{key}: {name}", text(_yaml(key.split("."), value)), ("params.yaml", *words))


def _yaml(path: list[str], value: str) -> str:
    """The text of BASE with the key at `path` written as `value`."""
    lines = []
    for block, content in BASE.items():
        keys = dict(content) if isinstance(content, dict) else content
        if block != path[0]:
            lines.append(f"{block}: {_flow(keys)}")
        elif len(path) == 1:
            lines.append(f"{block}: {value}")
        else:
            lines.append(f"{block}: {_with(keys, path[1:], value)}")
    return "\n".join(lines) + "\n"


def _with(content: dict[str, object], path: list[str], value: str) -> str:
    rest = ", ".join(f"{key}: {_flow(item)}" for key, item in content.items() if key != path[0])
    inner = content.get(path[0])
    last = value if len(path) == 1 else _with(dict(inner) if isinstance(inner, dict) else {}, path[1:], value)
    return "{" + (f"{rest}, " if rest else "") + f"{path[0]}: {last}" + "}"


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)
