"""A user's code has limits on time, memory and the network while it is loaded."""

import itertools
import socket
import sys
import time
import urllib.request

import numpy as np
import pytest

from windtunnel.boundary.limits import bounded
from windtunnel.boundary.network import no_network
from windtunnel.core.errors import UserError


def test_code_that_never_returns_is_interrupted_in_a_notebook_too():
    started = time.monotonic()
    line = r"model\.factory has not answered in 0\.2 s; model\.time_limit"
    with pytest.raises(UserError, match=line), bounded("model.factory", 0.2, "model.time_limit"):
        sum(1 for _ in itertools.repeat(0))
    assert time.monotonic() - started < 10


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts otherwise elsewhere")
def test_code_that_takes_too_much_memory_is_one_line():
    with pytest.raises(UserError, match="memory"), bounded("model.path", 60, "model.time_limit", memory=2**26):
        np.ones(2**28)
    assert np.ones(2**25).sum() == 2**25


@pytest.mark.parametrize("error", [SystemExit(0), ValueError("two\nlines"), KeyError(), RecursionError()])
def test_whatever_code_raises_is_one_line(error):
    with pytest.raises(UserError, match=r"model\.factory raised") as refused, bounded("model.factory", 60, "k"):
        raise error
    assert "\n" not in str(refused.value)


def test_no_library_connects_to_another_machine():
    with pytest.raises(UserError, match=r"wants to connect to example\.invalid"), no_network("model.path"):
        urllib.request.urlopen("http://example.invalid/")
    with socket.socket() as plain, pytest.raises(UserError, match=r"192\.0\.2\.1"), no_network("model.path"):
        plain.connect(("192.0.2.1", 9))
    assert socket.getaddrinfo("127.0.0.1", 80)
