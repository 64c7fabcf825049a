"""Every row of the table ends within its limits, with its exit code and one line that holds its words."""

import pytest

from tests.hostile.harness import MEMORY, windtunnel
from tests.hostile.table import Row, rows

ROWS = rows()


def test_the_table_has_300_rows():
    assert len(ROWS) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[row.name[:60] for row in ROWS])
def test_a_bad_input_is_one_line(project, row: Row):
    row.make(project)
    ended = windtunnel(*row.command, cwd=project)
    assert ended.code == row.code, (ended.out[-500:], ended.err[-1500:])
    for word in row.words:
        assert word in ended.line
    assert len(ended.line) < 1000
    assert ended.memory < MEMORY
