"""Jobs of Slurm give what this process gives, and what is lost is said. submitit's local cluster stands in for Slurm."""

from unittest.mock import Mock

import pytest

from windtunnel.core.errors import UserError
from windtunnel.runtime.executors import Executor, executor, slurm_jobs
from windtunnel.runtime.executors.dispatcher import Lost
from windtunnel.runtime.executors.slurm_jobs import CLUSTER, FOLDER, compute
from windtunnel.runtime.placement import VARIABLE

pytest.importorskip("submitit")


def square(number):
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number * number


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Queue:
    """Computes each job here when it is asked for; `dies` says of which units a job dies, `versions` what it computes with."""

    def __init__(self, dies=(), versions=None, seconds=None):
        self.dies, self.versions, self.seconds, self.sizes = dies, versions, seconds, []

    def submit(self, function, payload, units, seconds):
        self.sizes.append(len(units))

        def result():
            if set(units) & set(self.dies):
                raise RuntimeError("Job 7 was killed\nand more")
            versions, answers = function(payload, units, self.seconds if self.seconds is not None else seconds)
            return self.versions or versions, answers

        job = Mock(result=result)
        job.done.return_value = True
        return job


@pytest.fixture
def queue(monkeypatch):
    def install(**options):
        made = Queue(**options)
        monkeypatch.setattr(slurm_jobs, "_queue", lambda *_, **__: made)
        return made

    return install


def test_a_job_of_the_local_cluster_gives_what_this_process_gives(monkeypatch):
    monkeypatch.setenv(VARIABLE, "slurm:1")
    monkeypatch.setenv(CLUSTER, "local")
    monkeypatch.setattr(slurm_jobs, "JOBS_PER_WORKER", 1)
    slurm = executor()
    assert slurm == Executor("slurm", 1)
    assert dict(slurm.results(square, [3, 4, 5], "squares")) == {0: 9, 1: 16, 2: 25}
    assert not list(FOLDER.iterdir())  # pickled work does not pile up


def test_every_unit_comes_once_for_any_number_of_jobs(queue):
    for workers in (1, 3, None):
        queue()
        results = list(Executor("slurm", workers).results(square, range(11), "squares"))
        assert sorted(results) == [(number, number * number) for number in range(11)]


def test_a_unit_whose_jobs_die_is_lost_with_the_reason_and_takes_no_other_with_it(queue):
    queue(dies=[5])
    results = dict(Executor("slurm", 1).results(square, range(8), "squares"))
    assert results.pop(5) == Lost("its job died (Job 7 was killed), 5 times")
    assert results == {number: number * number for number in range(8) if number != 5}


def test_a_job_that_runs_out_of_time_returns_what_it_has_and_another_does_the_rest(queue):
    made = queue(seconds=0.0)
    assert dict(Executor("slurm", 1).results(square, range(8), "squares")) == {n: n * n for n in range(8)}
    assert sorted(made.sizes) == [1] * 4 + [2] * 4


def test_what_the_work_raises_is_raised_here_and_other_versions_are_refused(queue):
    queue()
    with pytest.raises(ValueError, match="-1 is below 0"):
        list(Executor("slurm", 1).results(square, [-1], "squares"))
    queue(versions={"torch": "1.0"})
    with pytest.raises(UserError, match=r"a job of Slurm has .*torch 1\.0"):
        list(Executor("slurm", 1).results(square, [1], "squares"))


@pytest.mark.parametrize(("cluster", "says"), [("slurm", "submits no jobs"), ("pbs", "'pbs' is no cluster")])
def test_a_machine_that_cannot_submit_is_one_line(monkeypatch, cluster, says):
    monkeypatch.setenv(CLUSTER, cluster)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=says):
        list(Executor("slurm", 1).results(square, [1], "squares"))


def test_work_that_cannot_be_loaded_is_said_by_the_job():
    from windtunnel.runtime.executors.payload import Payload, unpickled

    _, (answer,) = compute(Payload((), b"no pickle"), [1, 2], 60.0)
    assert unpickled(answer)[0] == "raised"
