"""Every row of the tables ends within its limits, with its exit code and one line that holds its words."""

import pytest

from tests.hostile.harness import MEMORY, windtunnel
from tests.hostile.table import Row, rows
from tests.hostile.table_init import rows_of_init
from tests.hostile.table_numbers import rows_of_numbers
from tests.hostile.table_vnnlib import rows_of_vnnlib

ROWS = [*rows(), *rows_of_numbers(), *rows_of_init(), *rows_of_vnnlib()]


def test_the_tables_have_900_rows_of_different_names():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 900


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[row.name[:60] for row in ROWS])
def test_a_bad_input_is_one_line(project, row: Row):
    row.make(project)
    ended = windtunnel(*row.command, cwd=project)
    assert ended.code == row.code, (ended.out[-500:], ended.err[-1500:])
    text = ended.out + ended.err if row.code == 0 else ended.line  # what ends well may skip files, a line for each
    for word in row.words:
        assert word in text
    assert "Traceback" not in text
    assert row.code == 0 or len(ended.line) < 1000
    assert ended.memory < MEMORY
