"""In words: what changed between two resolved forms of a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.params.resolved import Drawing, Resolved, Work

_SHOWN = 3
_ABSENT = object()


def explain(before: Resolved, now: Resolved) -> list[str]:
    """Return a phrase per change: `epsilon 0.06 -> 0.03`, `auto-LiRPA 0.3 -> 0.4`, `weights.pt changed`; none for no change."""
    return [*_of_work(before.work, now.work), *_of_drawing(before.drawing, now.drawing)]


def _of_work(before: Work, now: Work) -> Iterator[str]:
    old, new = flat(before.entry), flat(now.entry)
    for key in dict.fromkeys((*new, *old)):
        new_value, was = new.get(key, _ABSENT), old.get(key, _ABSENT)
        if new_value != was:
            yield _value_changed(key.removeprefix("budget."), was, new_value)
    for key in ("seed", "device"):
        if getattr(before, key) != getattr(now, key):
            yield _value_changed(key, getattr(before, key), getattr(now, key))
    for key in sorted({*before.files, *now.files}):
        if before.files.get(key) != now.files.get(key):
            yield f"{_file_name(key, new)} changed"
    for name in sorted({*before.builds_on, *now.builds_on}):
        if before.builds_on.get(name) != now.builds_on.get(name):
            yield f"{name}, which it builds on, changed"
    yield from _versions(before.libraries, now.libraries)
    yield from _code(before.code, now.code, "code")


def _of_drawing(before: Drawing, now: Drawing) -> Iterator[str]:
    if before.figures != now.figures:
        yield f"figures: {', '.join(figure.name for figure in now.figures) or 'none'}"
    if before.pictures != now.pictures:
        yield f"figures: report.pictures {before.pictures} -> {now.pictures}"
    yield from (f"figures: {line}" for line in _versions(before.libraries, now.libraries))
    yield from _code(before.code, now.code, "figures: code")


def _versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}, key=str.lower):
        if before.get(name) != now.get(name):
            yield f"{name} {before.get(name, 'not used')} -> {now.get(name, 'not used')}"


def _code(before: Mapping[str, str], now: Mapping[str, str], what: str) -> Iterator[str]:
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = [name.removeprefix("windtunnel.").removeprefix("assessments.") for name in changed[:_SHOWN]]
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield f"{what} of {', '.join(names)}{more}"


def _value_changed(key: str, before: object, now: object) -> str:
    texts = ["none" if value is _ABSENT or value is None else f"{value}" for value in (before, now)]
    return f"{key} {texts[0]} -> {texts[1]}"


def _file_name(key: str, entry: Mapping[str, object]) -> str:
    """Return the name of the file that a key of params.yaml names; `key` is with the family and the name of the entry."""
    entry_key = key.split(".", 2)[-1]
    path = entry.get(key, entry.get(entry_key))
    return Path(str(path)).name if path is not None else key


def flat(block: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested blocks as `budget.epsilon`: value; a list is one value."""
    flat_values: dict[str, object] = {}
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            flat_values |= flat(value, f"{prefix}{key}.")
        elif value != {}:
            flat_values[f"{prefix}{key}"] = value
    return flat_values
