"""The last line of `windtunnel status`: how long what it lists will take, as far as that is known."""

from __future__ import annotations

import pytest

from windtunnel.cli.pipeline import _estimate
from windtunnel.operations.resolve.status import Pending


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ((None, None), "2 stages; the time they take is not known on this machine yet."),
        ((4.2, None), "2 stages; about 4 s by their last runs, and 1 stage without a time yet."),
        ((4.2, 60.0), "2 stages; about 64 s by their last runs."),
    ],
)
def test_an_unknown_time_is_not_said_to_be_none(seconds, line):
    assert (
        _estimate([Pending(f"attack@{i}", ("epsilon 0.06 -> 0.03",), seconds=s) for i, s in enumerate(seconds)]) == line
    )


def test_what_is_only_drawn_takes_no_time():
    assert _estimate([Pending("attack@pgd", ("drawing",), redraws=True)]) == "1 stage; about 0 s by their last runs."
