"""Kills at random times, resumed to equal bytes. `python -m tests.hostile.random_kills 200` is the long form."""

import os

import pytest

from tests.hostile.random_kills import random_kills

KILLS = int(os.environ.get("WINDTUNNEL_KILLS", "3"))


@pytest.mark.integration
@pytest.mark.timeout(300 + 60 * KILLS)
def test_a_run_that_is_killed_at_random_times_resumes_to_equal_bytes(tmp_path):
    tally = random_kills(KILLS, 0, tmp_path)
    assert tally.failures == []
    assert tally.kills.total() >= KILLS
