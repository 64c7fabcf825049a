"""Every row of the tables ends within its limits, with its exit code and one line that holds its words.

A tenth of each kind is run, all with WINDTUNNEL_HOSTILE=all; see `selection.py`.
"""

from dataclasses import replace

import pytest

from tests.hostile import table
from tests.hostile.api_table import cases
from tests.hostile.harness import MEMORY, windtunnel
from tests.hostile.selection import LEAST, selected
from tests.hostile.table import Row
from tests.hostile.table_init import rows_of_init
from tests.hostile.table_keys import rows_of_keys
from tests.hostile.table_models import rows_of_models
from tests.hostile.table_numbers import rows_of_numbers
from tests.hostile.table_vnnlib import rows_of_vnnlib

KINDS = {
    "schema": table.schema, "yaml": table.yaml_text, "names": table.names, "data files": table.data_files,
    "data functions": table.data_functions, "models": table.models, "assessments": table.assessments, "imports": table.imports,
    "commands": table.commands, "numbers": rows_of_numbers, "init": rows_of_init, "vnnlib": rows_of_vnnlib,
    "model files": rows_of_models, "young keys": rows_of_keys,
}  # fmt: skip
ROWS = {kind: list(rows()) for kind, rows in KINDS.items()}
SELECTED = [row for kind, rows in ROWS.items() for row in selected(rows, kind, lambda row: row.name)]


def test_the_tables_have_900_rows_of_different_names():
    names = [row.name for rows in ROWS.values() for row in rows]
    assert len(set(names)) == len(names) >= 900
    assert len(cases()) >= 164


def test_a_tenth_of_each_kind_is_run_at_least():
    for kind, rows in ROWS.items():
        part = selected(rows, kind, lambda row: row.name, "0")
        assert len(part) >= min(len(rows), max(LEAST, len(rows) / 10)), kind
        assert selected(rows, kind, lambda row: row.name, "all") == rows


@pytest.mark.slow
@pytest.mark.parametrize("row", SELECTED, ids=[row.name[:60] for row in SELECTED])
def test_a_bad_input_is_one_line(project, row: Row):
    row.make(project)
    ended = windtunnel(*row.command, cwd=project)
    assert ended.code == row.code, (ended.out[-500:], ended.err[-1500:])
    if row.command[0] == "init":  # a line for each file that it skips
        said = [line for line in ended.err.splitlines() if not line.startswith("windtunnel: init: skipped ")]
        ended = replace(ended, err="\n".join(said))
    text = ended.out + ended.err if row.code == 0 else ended.line
    for word in row.words:
        assert word in text
    assert "Traceback" not in text
    assert row.code == 0 or len(ended.line) < 1000
    assert ended.memory < MEMORY
