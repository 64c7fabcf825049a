"""JSON objects read with care: what is missing or of another shape is empty."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.core.contracts import Json

Row = Mapping[str, Json]


def block(row: Row, key: str) -> Row:
    """A mapping inside a mapping; empty where there is none."""
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(row: Row, key: str) -> list[Json]:
    """A list inside a mapping; empty where there is none."""
    value = row.get(key)
    return value if isinstance(value, list) else []


def rows_in(row: Row, key: str) -> list[Row]:
    """The mappings of a list inside a mapping."""
    return [item for item in listed(row, key) if isinstance(item, Mapping)]


def interval(row: Row, key: str) -> tuple[float, float] | None:
    """The 95 % interval of a rate; None where there is none."""
    low, high = row.get(f"{key}_ci_low"), row.get(f"{key}_ci_high")
    # A bound of 0 comes out of the library as 1.7e-18.
    return None if low is None or high is None else (round(float(str(low)), 12), round(float(str(high)), 12))
