"""Handing out units: in which order, how far ahead, and what becomes of those whose workers die or hang."""

from collections import Counter
from itertools import islice

import pytest

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors import dispatcher
from windtunnel.runtime.executors.dispatcher import AHEAD, AT_MOST, DEATHS, Dispatcher, Lost, WorkerEvent


class Worker:
    def __init__(self):
        self.owes, self.ended = None, False

    def load(self, payload):
        self.owes = ("open", payload)

    def submit(self, unit):
        self.owes = ("unit", unit)

    def end(self):
        self.ended = True


class WorkerPool:
    """Workers without processes: `does` says what becomes of a unit that is given for the n-th time."""

    def __init__(
        self,
        size,
        does=lambda unit, time: WorkerEvent("done", 10 * unit),
        opens=lambda number: WorkerEvent("ready", None),
    ):
        self.size, self.workers, self.spawned, self.given = size, [], 0, Counter()
        self._does, self._opens, self.order = does, opens, []

    def spawn(self):
        self.spawned += 1
        self.workers.append(Worker())
        return self.workers[-1]

    def wait_events(self, workers, seconds):
        """The one that was asked last speaks first."""
        for worker in reversed(workers):
            word, unit = worker.owes
            if word == "open":
                return [(worker, self._opens(self.spawned))]
            found = self._does(unit, self.given[unit] + 1)
            if found is not None:
                self.given[unit] += 1
                self.order.append(unit)
                return [(worker, found)]
        return []

    def check_worker(self, ready):
        if ready == "other":
            raise UserError("a worker has torch 1.0")


def results(one, n, **how):
    return dict(Dispatcher(one, "payload", range(n), "it", **how).results())


def test_every_unit_is_done_once_and_comes_as_it_is_done():
    one = WorkerPool(3)
    found = list(Dispatcher(one, "payload", range(10), "it").results())
    assert dict(found) == {i: 10 * i for i in range(10)}
    assert [place for place, _ in found] != list(range(10))
    assert set(one.given.values()) == {1}
    assert one.spawned == 3


def test_no_more_workers_than_units():
    one = WorkerPool(8)
    results(one, 2)
    assert one.spawned == 2


def test_a_slow_unit_lets_the_others_run_ahead_by_a_few():
    """Unit 0 never answers: the others stop where the memory would grow."""
    one = WorkerPool(2, does=lambda unit, time: None if unit == 0 else WorkerEvent("done", unit))
    first = list(islice(Dispatcher(one, "payload", range(100), "it").results(), AHEAD * 2 - 1))
    assert sorted(place for place, _ in first) == [1, 2, 3]


def test_a_worker_has_its_next_unit_before_the_caller_sees_the_result_of_the_last():
    """What the driver makes of a result takes no time from the workers."""
    one = WorkerPool(1)
    for place, _ in Dispatcher(one, "payload", range(4), "it").results():
        (worker,) = one.workers
        assert worker.owes == ("unit", min(place + 1, 3))


def test_a_unit_whose_workers_die_is_given_again_and_then_given_up():
    one = WorkerPool(
        2, does=lambda unit, time: WorkerEvent("died", "SIGKILL") if unit == 4 else WorkerEvent("done", unit)
    )
    found = results(one, 8)
    assert found.pop(4) == Lost(f"its worker died (SIGKILL), {DEATHS} times")
    assert found == {i: i for i in (0, 1, 2, 3, 5, 6, 7)}
    assert one.given[4] == DEATHS
    assert one.spawned == 2 + DEATHS


def test_a_unit_that_chance_strikes_often_is_not_blamed_where_others_were_struck_too():
    """Each of the first three loses three workers and is finished then: nine deaths that were nobody's doing. Unit 4 loses ten."""
    lives = {0: 3, 1: 3, 2: 3, 4: 2 * DEATHS}
    one = WorkerPool(
        1,
        does=lambda unit, time: (
            WorkerEvent("died", "SIGKILL") if time <= lives.get(unit, 0) else WorkerEvent("done", unit)
        ),
    )
    assert results(one, 8) == {i: i for i in range(8)}
    assert one.given[4] == 2 * DEATHS + 1


def test_workers_that_die_at_their_start_show_that_the_units_are_not_to_blame():
    """Every second worker dies before it is ready; unit 1 loses as many of the others as are half of all."""
    one = WorkerPool(
        2,
        does=lambda unit, time: (
            WorkerEvent("died", "SIGKILL") if unit == 1 and time <= DEATHS + 2 else WorkerEvent("done", unit)
        ),
        opens=lambda number: (
            WorkerEvent("died", "SIGKILL") if number > 2 and number % 2 else WorkerEvent("ready", None)
        ),
    )
    assert results(one, 4) == {i: i for i in range(4)}


def test_a_unit_that_kills_is_given_up_however_often_others_were_struck():
    """Every other unit loses two workers, which is nobody's doing; each of those that kill has an end all the same."""
    one = WorkerPool(
        2,
        does=lambda unit, time: (
            WorkerEvent("died", "SIGKILL") if unit in (20, 30) or time <= 2 else WorkerEvent("done", unit)
        ),
    )
    found = results(one, 40)
    assert {place for place, result in found.items() if isinstance(result, Lost)} == {20, 30}
    assert one.given[20] == one.given[30] == AT_MOST


def test_units_that_kill_do_not_excuse_each_other():
    one = WorkerPool(2, does=lambda unit, time: WorkerEvent("died", "SIGKILL"))
    found = results(one, 6)
    assert all(isinstance(result, Lost) for result in found.values())
    assert set(one.given.values()) == {DEATHS}


def test_a_worker_that_was_killed_by_chance_costs_nothing_but_time():
    one = WorkerPool(
        3, does=lambda unit, time: WorkerEvent("died", "SIGKILL") if time == 1 else WorkerEvent("done", unit)
    )
    assert results(one, 20) == {i: i for i in range(20)}


@pytest.mark.parametrize(("limit", "times"), [(None, dispatcher.HANGS), (lambda unit: 7.0, 1)])
def test_a_unit_that_hangs_is_given_up(monkeypatch, limit, times):
    """With a limit of its caller's at once: that is what the limit means."""
    clock = [0.0]
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(dispatcher, "batch_limit", lambda: 7.0)
    asked = []

    def does(unit, time):
        if unit != 1:
            return WorkerEvent("done", unit)
        clock[0] += 4.0
        asked.append(unit)
        return None

    found = results(WorkerPool(1, does), 3, limit=limit)
    lost = found.pop(1)
    assert isinstance(lost, Lost)
    assert lost.hung
    assert lost.reason.startswith("its worker gave no answer in 7 s")
    assert found == {0: 0, 2: 2}
    assert len(asked) == 2 * times


def test_what_the_work_raises_is_raised_and_whoever_is_busy_is_ended():
    one = WorkerPool(
        2,
        does=lambda unit, time: (
            WorkerEvent("raised", UserError("no")) if unit == 3 else None if unit == 2 else WorkerEvent("done", 0)
        ),
    )
    with pytest.raises(UserError, match="no"):
        results(one, 6)
    assert len(one.workers) < 2


def test_a_crew_that_dies_before_it_is_ready_is_an_error_and_not_a_loop():
    one = WorkerPool(2, opens=lambda number: WorkerEvent("died", "exit code 1"))
    with pytest.raises(UserError, match=r"it: 6 workers in a row died before they were ready \(exit code 1\)"):
        results(one, 6)


def test_one_that_dies_at_its_start_is_replaced():
    one = WorkerPool(
        2, opens=lambda number: WorkerEvent("died", "SIGKILL") if number < 5 else WorkerEvent("ready", None)
    )
    assert len(results(one, 6)) == 6


def test_a_crew_that_is_never_ready_is_an_error_and_no_endless_wait(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: clock[0])

    class Waits(WorkerPool):
        def wait_events(self, workers, seconds):
            clock[0] += 100.0
            return []

    with pytest.raises(UserError, match="it: no worker was ready in 300 s"):
        results(Waits(2), 3)


def test_a_worker_that_would_compute_something_else_is_refused():
    with pytest.raises(UserError, match=r"a worker has torch 1\.0"):
        results(WorkerPool(2, opens=lambda number: WorkerEvent("ready", "other")), 3)


def test_workers_are_kept_for_the_next_piece_of_work():
    one = WorkerPool(3)
    results(one, 5)
    results(one, 5)
    assert one.spawned == 3
    assert not any(worker.ended for worker in one.workers)
