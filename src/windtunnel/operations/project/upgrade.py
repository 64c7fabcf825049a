"""Rewrite the params.yaml of an older version: keys that moved or are gone, references, and top-level keys that DVC needs."""

import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.boundary.params_file import params_text
from windtunnel.boundary.text import edit_yaml, parse_map, yaml_text
from windtunnel.core.errors import UserError
from windtunnel.operations.project.graph import graph_text
from windtunnel.operations.project.write import GRAPH, PARAMS, Plan, plan, read_record
from windtunnel.params.load import absent_keys, validate_schema

_WORKERS = "the executor is set by WINDTUNNEL_EXECUTOR or windtunnel.local.yaml"
# (family, key of an entry, its name today; empty where it is gone, why). The oldest first; a line stays as long as such a file reads.
_ENTRY_KEYS = (
    ("corruptions", "workers", "", _WORKERS),
    ("verification", "workers", "", _WORKERS),
    ("verification", "rivals", "other_classes", ""),
)
_MOVED = (re.compile(r"\bwindtunnel\.inputs\b"), "windtunnel.boundary")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Files to write, and a line per change of params.yaml, per mistake in it that no rule mends, and per file that stays.

    proposal: what this version would write in place of the files that stay.
    """

    plan: Plan
    changes: tuple[str, ...]
    mistakes: tuple[str, ...]
    unchanged: tuple[str, ...]
    proposal: Plan


def plan_upgrade(folder: Path) -> Upgrade:
    """Return the upgrade of the project in `folder`; nothing is written. Raises UserError where there is no project."""
    text = params_text(folder / PARAMS)
    new_text, changes = upgraded_params(text, PARAMS)
    content = parse_map(new_text, PARAMS)
    mistakes: list[str] = []
    try:
        validate_schema(content, PARAMS)
    except UserError as error:
        mistakes += str(error).splitlines()
    graph, has_record = graph_text(content), read_record(folder) is not None
    planned = plan(folder, new_text, graph) if has_record else Plan(folder, {})
    proposal = Plan(folder, {GRAPH: graph} if GRAPH in planned.kept or not has_record else {})
    if has_record:
        unchanged = [f"{name}: was changed by you and stays" for name in planned.kept if name != PARAMS]
    else:
        unchanged = [f"{name}: was not written by windtunnel init and stays" for name in proposal.changes()]
    planned = replace(planned, files={**planned.files, PARAMS: new_text})
    return Upgrade(planned, tuple(changes), tuple(mistakes), tuple(unchanged), proposal)


def upgraded_params(text: str, where: str) -> tuple[str, list[str]]:
    """Return the text of params.yaml as this version reads it, and a line per change. Comments and order stay."""
    changes: list[str] = []
    pattern, now = _MOVED
    if pattern.search(text):
        text = pattern.sub(now, text)
        changes.append(f"windtunnel.inputs is {now}")
    document = edit_yaml(text, where)
    if entry_changes := [*_entry_changes(document)]:
        changes += entry_changes
        text = yaml_text(document, preserve_quotes=True, width=160)
    for key, line in absent_keys(parse_map(text, where)).items():
        text = f"{text.rstrip()}\n{line}\n"
        changes.append(f"{key}: added, since DVC needs every key")
    return text, changes


def _entry_changes(document: Any) -> Iterator[str]:
    """Yield a line per key that was changed, in place, in the entries of `document`."""
    for family, key, name, why in _ENTRY_KEYS:
        entries = document.get(family)
        for label, entry in entries.items() if isinstance(entries, MutableMapping) else ():
            if isinstance(entry, MutableMapping) and key in entry:
                index = list(entry).index(key)
                value = entry.pop(key)
                if name:
                    entry.insert(index, name, value)  # type: ignore[attr-defined]  # ruamel's maps have an order
                yield f"{family}.{label}.{key}: is {name} now" if name else f"{family}.{label}.{key}: left out; {why}"
