"""Kills at random times, resumed to equal bytes. `python -m tests.hostile.random_kills 200` is the long form."""

import os

import pytest

from tests.hostile.random_kills import random_kills


@pytest.mark.integration
@pytest.mark.skipif("WINDTUNNEL_KILLS" not in os.environ, reason="takes many minutes: WINDTUNNEL_KILLS says how many")
def test_a_run_that_is_killed_at_random_times_resumes_to_equal_bytes(tmp_path):
    kills = int(os.environ.get("WINDTUNNEL_KILLS", "10"))
    tally = random_kills(kills, 0, tmp_path)
    assert tally.failures == []
    assert tally.kills.total() >= kills
