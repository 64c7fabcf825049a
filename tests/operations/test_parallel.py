"""What `windtunnel repro` decides before it starts a stage."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from windtunnel.core import machine
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.operations import parallel
from windtunnel.params.resolved import Resolved, Work


@pytest.mark.parametrize(("text", "expected"), [("max 100000", 8), ("150000 100000", 1), ("300000 100000", 3)])
def test_the_limit_of_a_container_bounds_the_processors(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text(text)
    assert machine.usable_processors() == expected


def test_nothing_else_counts_the_processors_of_the_machine():
    package = Path(machine.__file__).parents[1]
    counting = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if "cpu_count" in path.read_text()
    }
    assert counting == {"core/machine.py"}


def test_each_chosen_gpu_has_its_name(monkeypatch):
    monkeypatch.setattr(parallel.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert parallel.visible_gpus("auto") == ["2", "5"]
    assert parallel.visible_gpus("cpu") == []


def stage_that(command, tmp_path):
    repo = SimpleNamespace(root_dir=str(tmp_path))
    return SimpleNamespace(cmd=command, wdir=str(tmp_path), addressing="own", repo=repo)


def test_a_command_of_the_users_own_runs_in_a_shell(tmp_path):
    process = parallel._start(stage_that("echo $DVC_STAGE; exit 3", tmp_path), {}, tmp_path / "own.log")
    assert process.wait(30) == 3
    assert (tmp_path / "own.log").read_text() == "own\n"


def running(tmp_path, code, memory=0):
    log = tmp_path / f"{code}.log"
    log.write_text("why\n")
    one = parallel._Running(
        "own", SimpleNamespace(), SimpleNamespace(exitcode=code, pid=0), log, 0.0, parallel.ExitStack()
    )
    one.memory = lambda: memory
    one.most_memory = memory
    return one


@pytest.mark.parametrize(("code", "error"), [(2, UserError), (1, InfrastructureError), (-9, InfrastructureError)])
def test_a_failed_stage_ends_the_run_when_the_others_have_ended(tmp_path, capsys, code, error):
    repo = SimpleNamespace(lock=parallel.ExitStack(), state=SimpleNamespace(close=lambda: None))
    reproduction = parallel._Reproduction(repo, 2, [], tmp_path, None, [running(tmp_path, code), running(tmp_path, 0)])
    reproduction._save = lambda stage: None
    with pytest.raises(error, match=f"own failed with exit code {code}"):
        list(reproduction._finished())
    assert not reproduction.running
    assert capsys.readouterr().out == "why\nwhy\n"


def test_a_stage_waits_for_memory_but_one_always_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "free_memory", lambda: 2 * 2**30)
    first = running(tmp_path, None, 2**30)
    reproduction = parallel._Reproduction(None, 8, [], tmp_path, None, [first])
    assert reproduction._has_room("new")
    reproduction.running = [running(tmp_path, None, 3 * 2**30)]
    assert not reproduction._has_room("new")
    reproduction.running = []
    assert reproduction._has_room("new")


def test_a_stage_that_took_much_memory_last_time_runs_alone_and_small_ones_beside_each_other(tmp_path, monkeypatch):
    gigabyte = 2**30
    monkeypatch.setattr(parallel, "free_memory", lambda: 4 * gigabyte)
    measured = {"verify@crown": 14 * gigabyte, "own": gigabyte // 2}
    reproduction = parallel._Reproduction(
        None, 8, [], tmp_path, None, [running(tmp_path, None, gigabyte // 4)], measured
    )
    assert not reproduction._has_room("verify@crown")
    assert reproduction._has_room("attack@fgsm")
    measured["own"] = 6 * gigabyte  # of which it has a quarter of one: the rest is still to come
    assert not reproduction._has_room("attack@fgsm")


def test_the_view_says_the_share_done_and_the_time_left(tmp_path):
    one = running(tmp_path, None)
    one.log.with_suffix(".json").write_text('{"completed": 50, "total": 200, "rate": 10}')
    assert one.words().startswith("own: 25%, ")
    assert one.words().endswith(", 0:00:15 left")


class Stage:
    def __init__(self, addressing):
        self.addressing = addressing


def test_an_entry_waits_for_those_whose_results_it_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Resolved(stage="attack", name="quick", work=Work(entry={}, builds_on={"attack@pgd": "digest"})).write()
    plan, begun, ended = [Stage("attack@quick"), Stage("attack@pgd")], [], []
    monkeypatch.setattr("dvc.repo.reproduce.collect_stages", lambda repo, targets: targets)
    monkeypatch.setattr("dvc.repo.reproduce.get_active_graph", lambda graph: graph)
    monkeypatch.setattr("dvc.repo.reproduce.plan_repro", lambda graph, chosen: plan)
    graph = SimpleNamespace(successors=lambda stage: [])  # dvc.yaml does not name the dependency

    def begin(self, stage):
        begun.append((stage.addressing, [*ended]))
        self.running.append(SimpleNamespace(stage=stage, process=None))
        return True

    def finished(self):
        job = self.running.pop()
        ended.append(job.stage.addressing)
        return [job]

    for name, fake in (("_begin", begin), ("_finished", finished), ("_has_room", lambda self, label: True)):
        monkeypatch.setattr(parallel._Reproduction, name, fake)
    monkeypatch.setattr(parallel._Reproduction, "_locked", lambda self: parallel.ExitStack())
    monkeypatch.setattr(parallel, "_view", lambda running: parallel.ExitStack())
    parallel._Reproduction(SimpleNamespace(index=SimpleNamespace(graph=graph)), 2, [], tmp_path, None).run([])
    assert begun == [("attack@pgd", []), ("attack@quick", ["attack@pgd"])]
