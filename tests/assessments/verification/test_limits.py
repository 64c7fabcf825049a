"""Time and memory are kept while somebody else's code computes."""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from balls import budget, entry, subject_with
from torch import nn
from zoo import ZOO

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.bound_propagation import bounder
from windtunnel.assessments.verification.bound_propagation.memory import samples_that_suit
from windtunnel.core.batches import out_of_memory
from windtunnel.core.contracts import Verdict
from windtunnel.core.errors import OutOfTimeError
from windtunnel.core.machine import memory_limit, time_limit

CPU = torch.device("cpu")


def test_a_computation_is_interrupted_at_its_deadline_and_the_next_one_is_not():
    matrix, started = torch.rand(300, 300), time.monotonic()

    def forever():
        nonlocal matrix
        while True:
            matrix = matrix @ matrix / 300

    with pytest.raises(OutOfTimeError), time_limit(started + 0.3):
        forever()
    assert 0.3 <= time.monotonic() - started < 30
    with time_limit(time.monotonic() + 0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(OutOfTimeError), time_limit(time.monotonic()):
        pass


def _traced_after_a_limit():
    with time_limit(time.monotonic() + 60):
        pass
    called = []
    sys.setprofile(lambda frame, event, _: called.append(event))
    _nothing()
    sys.setprofile(None)
    return "call" in called


def _nothing():
    return None


def test_profilers_and_debuggers_work_after_a_limit():
    """An interruption taken back by a null pointer stays announced, for which a traced frame of Python 3.11 waits for ever."""
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_traced_after_a_limit).get(timeout=120)


def test_an_interruption_at_the_end_of_its_block_strikes_nobody_else():
    struck = 0
    for i in range(300):
        try:
            with time_limit(time.monotonic() + 1e-5 * i):
                sum(range(1000))
        except OutOfTimeError:
            struck += 1
        sum(range(5000))  # outside of the try: whatever was sent late would end the test here
    assert 0 < struck < 300


def in_new_process(function):
    """What earlier tests freed still belongs to a process, and an allocation that fits in there meets no limit."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function).result()


def _allocate_too_much():
    with memory_limit(2**28, CPU):
        assert len(torch.zeros(2**24)) == 2**24
        with pytest.raises(RuntimeError) as caught:
            torch.ones(2**27)
    return out_of_memory(caught.value), float(torch.ones(2**27).sum())


@pytest.mark.skipif("sys.platform != 'linux'", reason="RLIMIT_DATA counts otherwise elsewhere")
def test_an_allocation_beyond_the_limit_fails_and_later_ones_do_not():
    assert in_new_process(_allocate_too_much) == (True, 2**27)


@pytest.mark.slow
def test_a_time_budget_ends_what_would_take_minutes():
    """alpha-CROWN of this network takes minutes; benchmarks/time_budget.py measures that the overrun is below a tenth."""
    make, shape = ZOO["resnet"]
    torch.manual_seed(0)
    subject = subject_with(make(), torch.rand(3, *shape), 5)
    assess("v", entry("ibp"), budget(0.002), subject)  # imports, once a process
    started = time.monotonic()
    result = assess("v", entry("alpha-crown", time_budget=5), budget(0.002), subject)
    assert time.monotonic() - started < 30
    assert result.data["timed_out"].all()
    assert "time_out" in [caveat.code for caveat in result.caveats]


def _crown_in_64_mebibytes():
    make, shape = ZOO["2 million"]
    torch.manual_seed(0)
    subject = subject_with(make(), torch.rand(1, *shape), 5)
    bounder.memory_to_use = lambda device: 2**26
    result = assess("v", entry("crown"), budget(0.004), subject)
    return result.caveats, result.data["verdicts"].item()


@pytest.mark.slow
def test_a_method_that_does_not_fit_gives_way_to_a_weaker_one_with_a_caveat():
    caveats, verdict = in_new_process(_crown_in_64_mebibytes)
    (caveat,) = [caveat for caveat in caveats if caveat.code == "weaker_method" and " crown:" in caveat.text]
    assert "out of memory on one sample" in caveat.text
    assert verdict in (Verdict.VERIFIED, Verdict.UNKNOWN)


def test_the_more_activations_a_sample_has_the_fewer_are_bounded_together():
    small, large = (nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU()) for width in (1, 64))
    image = torch.zeros(1, 1, 28, 28)
    assert samples_that_suit(small, image) == 100_000 // (3 * 28 * 28)
    assert samples_that_suit(large, image) == 1, "the units that switch in any sample are bounded for all of a batch"
