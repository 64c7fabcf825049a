"""Where work is done changes nothing of what it gives: in this process, in others, on Ray; killed, and resumed elsewhere."""

import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.conftest import classifier_of
from windtunnel.assessments.attacks.assess import assess
from windtunnel.boundary.models.backends import PredictFunction
from windtunnel.core.batches import Incidents, batches_of
from windtunnel.core.errors import UserError
from windtunnel.core.subject import subject_of
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget
from windtunnel.params.load import validate_schema
from windtunnel.records.files import write_json
from windtunnel.runtime import executors
from windtunnel.runtime import placement as placement_module
from windtunnel.runtime.batch_runner import Checkpoint, each_batch, run_batches
from windtunnel.runtime.executors import Executor, dispatcher, executor
from windtunnel.runtime.executors.dispatcher import DEATHS
from windtunnel.runtime.executors.payload import require_equal, versions
from windtunnel.runtime.placement import (
    LIMIT_VARIABLE,
    LOCAL_FILE,
    PROGRESS_FILE,
    RUNNING_FILE,
    VARIABLE,
    batch_limit,
    require_placement,
    share_of_processors,
)

BUDGET = Budget(norm="Linf", epsilon=0.1)
EVERYWHERE = ["processes:2", pytest.param("ray:2", marks=pytest.mark.slow)]


def needs(asked: str) -> None:
    if asked.startswith("ray"):
        pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)


def drawn(batch):
    """A unit that draws at random, from its own seed."""
    generator = torch.Generator().manual_seed(batch.seed)
    return {"x": torch.rand(len(batch.indices), generator=generator), "index": batch.indices}


def test_who_is_asked(monkeypatch, tmp_path):
    assert executor() == Executor(is_default=True)
    LOCAL_FILE.write_text("executor: processes:3\n")
    assert executor() == Executor("processes", 3)
    monkeypatch.setenv(VARIABLE, "here")
    assert executor() == Executor()


def test_an_experiment_of_dvc_asks_the_local_file_of_who_began_it(monkeypatch, tmp_path):
    LOCAL_FILE.write_text("executor: processes:3\n")
    subprocess.run(["git", "init", "-q", "."], check=True)
    clone = tmp_path / ".dvc" / "tmp" / "exps" / "tmp1"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    monkeypatch.chdir(clone)
    assert executor() == Executor("processes", 3)
    LOCAL_FILE.write_text("executor: here\n")  # its own comes first
    assert executor() == Executor()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("proceses:2", "'proceses' is not an executor.*'processes'"),
        ("processes", "'processes' is not an executor; write"),
        ("processes:many", "write here, processes:4, ray or slurm:8"),
        ("processes:0", "has no workers"),
        ("here:2", "write here, processes:4"),
        ("processes:٣", "write here, processes:4"),
        ("processes:1000000", "'processes:1000000' is more than this machine of .* processors can use; at most"),
    ],
)
def test_a_wrong_word_is_one_line(monkeypatch, asked, says):
    monkeypatch.setenv(VARIABLE, asked)
    with pytest.raises(UserError, match=says) as found:
        executor()
    assert str(found.value).startswith(f"{VARIABLE}: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("workers: 2", "'workers' is not a key here. Allowed: executor, batch_limit"),
        ("executer: here", "'executer' is not a key here. Did you mean 'executor'?"),
        ("executor: here\nbatchlimit: 3", "'batchlimit' is not a key here. Did you mean 'batch_limit'?"),
        ("executor: proceses:2", "executor: 'proceses' is not an executor.*Did you mean 'processes'?"),
        ("executor: no", "executor: 'no' is not an executor"),
        ("executor: false", "executor: 'false' is not an executor"),
        ("executor: processes: 2", "is not YAML.*line 1, column 20"),
        ("[", "is not YAML"),
        ("here", "holds 'here' and no keys; write `executor: processes:4`"),
        ("executor: [1]", "executor: a list or a map is no value"),
        ("[1]: here", "'a list or a map' is not a key"),
        ("<<: &a {executor: here}", "'<<' is not a key"),
        ("[" * 3000, "is not YAML"),
        ("#" + "x" * 5000, "is no regular file of at most 4096 bytes"),
        ("batch_limit: " + "9" * 3000, "is no number of seconds"),
        ("batch_limit: soon", "batch_limit: 'soon' is no number of seconds above 0"),
        ("batch_limit: 0", "batch_limit: '0' is no number of seconds above 0"),
    ],
)
def test_a_wrong_local_file_is_one_line(content, says):
    LOCAL_FILE.write_text(content)
    with pytest.raises(UserError, match=says) as found:
        require_placement()
    assert str(found.value).startswith("windtunnel.local.yaml: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("content", ["", "# executor: processes:4\n", "executor:\n"])
def test_a_local_file_that_says_nothing_asks_for_nothing(content):
    LOCAL_FILE.write_text(content)
    assert executor() == Executor(is_default=True)


@pytest.mark.parametrize("stage", ["resolve", "attack pgd"])
def test_a_stage_refuses_before_it_starts(stage, tmp_path):
    """As DVC runs it: what is wrong with the local file is said by the first stage, and not after the model was trained."""
    LOCAL_FILE.write_text("executer: here")
    code = f"from windtunnel.operations.stages.run import main; main(*{stage.split()})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("windtunnel: windtunnel.local.yaml: 'executer' is not a key here.")
    assert len(done.stderr.splitlines()) == 1


def test_an_executor_that_is_not_installed_is_one_line_before_it_is_needed(monkeypatch):
    monkeypatch.setattr("windtunnel.runtime.placement.find_spec", lambda name: None)
    monkeypatch.setenv(VARIABLE, "ray:2")
    with pytest.raises(UserError, match=r"'ray:2' needs ray, which is not installed; pip install 'windtunnel\[ray\]'"):
        executor()


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_the_results_are_the_same_everywhere_and_in_order(monkeypatch, asked):
    needs(asked)
    batches = batches_of(torch.arange(50), 7, 3, "it")
    here = run_batches(batches, drawn, name="it")
    monkeypatch.setenv(VARIABLE, asked)
    there = run_batches(batches, drawn, name="it")
    assert here.keys() == there.keys()
    assert all(torch.equal(here[key], there[key]) for key in here)
    assert run_batches([], drawn, name="it") == {}


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_an_attack_is_equal_bytes_everywhere(digits_subject, monkeypatch, asked):
    """PGD with its random starts, restarts and all: every tensor and every metric."""
    needs(asked)
    entry = AttackEntry.model_validate(
        {"library": "torchattacks", "algorithm": "PGD", "batch_size": 32, "restarts": 2, "budget": {"steps": 5, "step_size": 0.03}}
    )  # fmt: skip
    here = assess("pgd", entry, BUDGET, digits_subject)
    monkeypatch.setenv(VARIABLE, asked)
    there = assess("pgd", entry, BUDGET, digits_subject)
    assert here.metrics == there.metrics
    assert here.data.keys() == there.data.keys()
    for key, value in here.data.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, there.data[key]), key


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_what_a_unit_raises_is_raised_here(monkeypatch, asked):
    needs(asked)
    monkeypatch.setenv(VARIABLE, asked)

    def work(batch):
        if batch.number == 2:
            raise UserError("attacks.it: the third batch does not like it")
        return drawn(batch)

    with pytest.raises(UserError, match="the third batch does not like it"):
        run_batches(batches_of(torch.arange(12), 3, 0, "it"), work, name="it")


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_a_worker_that_dies_loses_its_batch_alone(monkeypatch, tmp_path, asked):
    """Its unit is done again; one that kills every worker ends in a line that names it."""
    needs(asked)
    monkeypatch.setenv(VARIABLE, asked)
    marker = tmp_path / "died"

    def dies_once(batch):
        if batch.number == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return drawn(batch)

    batches = batches_of(torch.arange(40), 4, 3, "it")
    found = run_batches(batches, dies_once, name="it")
    assert marker.exists()
    monkeypatch.delenv(VARIABLE)
    assert torch.equal(found["x"], run_batches(batches, drawn, name="it")["x"])


def faults_of_a_search(batch):
    """How many pages the system gave this process while it asked for the same 60 MB again and again."""
    for _ in range(5):
        parts = [torch.ones(5_000_000) for _ in range(3)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(5_000_000) for _ in range(3)]
    del parts
    return {"faults": torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before])}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of other C libraries nothing is known")
@pytest.mark.parametrize("asked", ["here", *EVERYWHERE])
def test_a_worker_works_in_the_memory_that_its_last_batch_left(monkeypatch, asked):
    """20 times 60 MB are 290,000 pages."""
    needs(asked)
    monkeypatch.setenv(VARIABLE, asked)
    found = run_batches(batches_of(torch.arange(2), 1, 3, "it"), faults_of_a_search, name="it")
    assert found["faults"].max() < 50_000


def dies(batch):
    if batch.number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return drawn(batch)


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_a_batch_that_kills_every_worker_is_named_and_the_rest_is_done_and_kept(monkeypatch, tmp_path, asked):
    needs(asked)
    deaths = DEATHS
    if asked.startswith("ray"):  # a new actor imports for seconds; processes show how often a batch is tried
        deaths = 2
        monkeypatch.setattr(dispatcher, "DEATHS", deaths)
    monkeypatch.setenv(VARIABLE, asked)
    checkpoint, seen = Checkpoint("it", "resolved", [], tmp_path), []
    found_of_each = each_batch(batches_of(torch.arange(40), 4, 3, "it"), dies, name="it", checkpoint=checkpoint)
    with pytest.raises(
        UserError, match=rf"it: 4 samples have no result: its worker died .*, {deaths} times; .*kept"
    ) as found:
        seen.extend(batch.number for batch, _ in found_of_each)
    assert "\n" not in str(found.value)
    assert seen == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    checkpoint.clear()  # the assessment is not whole
    assert [n for n in range(10) if checkpoint.has(n)] == seen


def test_what_stands_for_a_lost_batch_takes_its_place(monkeypatch):
    monkeypatch.setenv(VARIABLE, "processes:2")
    incidents = Incidents()
    batches = batches_of(torch.arange(40), 4, 3, "it")

    def without(batch):
        return {"x": torch.full((4,), torch.nan), "index": batch.indices}

    found = run_batches(batches, dies, name="it", without=without, incidents=incidents)
    assert torch.equal(found["index"], torch.arange(40))
    assert found["x"].isnan().nonzero().flatten().tolist() == incidents.lost_samples.tolist() == [20, 21, 22, 23]
    (caveat,) = incidents.caveats([f"s{i}" for i in range(40)])
    assert (caveat.code, caveat.samples) == ("batch_failed", ("s20", "s21", "s22", "s23"))


@pytest.mark.parametrize("asked", EVERYWHERE)
def test_a_batch_that_hangs_is_given_up(monkeypatch, tmp_path, asked):
    """The limit is far below what it would take; the others come back."""
    needs(asked)
    monkeypatch.setenv(VARIABLE, asked)
    monkeypatch.setenv(LIMIT_VARIABLE, "1.5")

    def hangs(batch):
        if batch.number == 1:
            (tmp_path / f"{time.monotonic()}").touch()
            time.sleep(3600)
        return drawn(batch)

    batches = batches_of(torch.arange(8), 2, 3, "it")
    with pytest.raises(UserError, match=r"2 samples have no result: its worker gave no answer in 1.5 s, 2 times"):
        run_batches(batches, hangs, name="it")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("given", ["soon", "0", "-3"])
def test_a_limit_that_is_none_is_refused(monkeypatch, given):
    monkeypatch.setenv(LIMIT_VARIABLE, given)
    with pytest.raises(UserError, match=f"{LIMIT_VARIABLE}: '{given}' is no number of seconds above 0"):
        batch_limit()


@pytest.mark.parametrize("family", ["attacks", "corruptions", "verification"])
def test_where_work_is_done_is_refused_in_params_with_the_place_where_it_belongs(family):
    entry = {"corruptions": {"algorithm": "fog", "upsample": 32}, "verification": {"library": "auto-LiRPA", "algorithm": "ibp"},
             "attacks": {"library": "torchattacks", "algorithm": "FGSM"}}[family]  # fmt: skip
    given = {
        "data": {"source": "digits"},
        "model": {"source": "train"},
        "budget": {"norm": "Linf", "epsilon": 0.1},
        family: {"it": {**entry, "workers": 3}},
    }
    with pytest.raises(
        UserError, match=rf"{family}\.it: workers: .*{VARIABLE}=processes:4, --executor, .*{LOCAL_FILE}"
    ) as found:
        validate_schema(given)
    assert "\n" not in str(found.value)


def test_the_limit_of_the_local_file():
    LOCAL_FILE.write_text("batch_limit: 90\n")
    assert batch_limit() == 90
    assert executor() == Executor(is_default=True)


SHORT = {
    "the CPU": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 TB"),
    "an accelerator": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
}


@pytest.mark.parametrize(("asked", "of"), [("here", "the CPU"), ("processes:2", "the CPU"), ("here", "an accelerator")])
def test_a_batch_that_does_not_fit_is_worked_on_in_halves_and_says_so(monkeypatch, asked, of):
    monkeypatch.setenv(VARIABLE, asked)
    short = SHORT[of]

    def small(batch):
        if len(batch.indices) > 3:
            raise short
        return drawn(batch)

    incidents = Incidents()
    batches = batches_of(torch.arange(13), 10, 3, "it")
    found = run_batches(batches, small, name="it", incidents=incidents)
    assert torch.equal(found["index"], torch.arange(13))
    assert set(found) == {"x", "index"}
    assert len(found["x"].unique()) == 13  # each half draws its own
    assert incidents.halved == list(range(10))
    assert [c.code for c in incidents.caveats([str(i) for i in range(13)])] == ["batch_halved"]


def test_a_batch_of_one_that_does_not_fit_is_refused(monkeypatch):
    def never(batch):
        raise MemoryError("can't allocate memory")

    with pytest.raises(MemoryError):
        run_batches(batches_of(torch.arange(2), 2, 3, "it"), never, name="it")


def test_a_run_goes_on_elsewhere(monkeypatch, tmp_path):
    """What processes kept, this one takes up, and does only the rest; a damaged shard is done again."""
    batches = batches_of(torch.arange(40), 4, 3, "it")
    whole = run_batches(batches, drawn, name="it")
    monkeypatch.setenv(VARIABLE, "processes:2")
    checkpoint = Checkpoint("it", "resolved", [], tmp_path)
    for batch, _ in each_batch(batches, drawn, name="it", checkpoint=checkpoint):
        if batch.number == 6:
            break
    monkeypatch.delenv(VARIABLE)
    (checkpoint.directory / "000002.pt").write_bytes(b"cut off")
    did = []

    def counted(batch):
        did.append(batch.number)
        return drawn(batch)

    resumed = run_batches(batches, counted, name="it", checkpoint=checkpoint)
    assert torch.equal(resumed["x"], whole["x"])
    assert 2 in did
    assert not {0, 1, 3, 4} & set(did)


def test_a_function_whose_queries_are_counted_stays(digits_subject, monkeypatch, capsys):
    """Said in a line; the count is whole."""
    monkeypatch.setenv(VARIABLE, "processes:2")
    module = digits_subject.classifier.module

    def predict(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(batch)).softmax(1).numpy()

    subject = subject_of(
        classifier_of(PredictFunction(predict), 10, (1, 8, 8)), digits_subject.dataset.subset(torch.arange(8))
    )
    asked = subject.classifier.module.queries_asked
    entry = AttackEntry.model_validate(
        {"library": "torchattacks", "algorithm": "Square", "params": {"n_queries": 20}, "batch_size": 4}
    )
    assess("square", entry, BUDGET, subject)
    assert "runs in one process: every query of a function is counted" in capsys.readouterr().err
    assert subject.classifier.module.queries_asked > asked


def test_a_worker_with_other_versions_is_refused():
    mine = versions()
    require_equal(mine, dict(mine), "it")
    with pytest.raises(UserError, match=r"a worker has torch 1\.0 \(here .*\): its results would be others"):
        require_equal(mine, {**mine, "torch": "1.0"}, "a worker")


def test_the_processor_and_the_accelerator_count_as_versions():
    """A worker on an accelerator, or on a processor whose sums have other parts, beside a driver on this CPU."""
    mine = versions()
    assert {"torch", "numpy", "windtunnel", "processor", "device"} <= set(mine)
    with pytest.raises(UserError, match=r"device NVIDIA A100 \(here"):
        require_equal(mine, {**mine, "device": "NVIDIA A100"}, "a worker")
    with pytest.raises(UserError, match=r"processor NOTHING \(here"):
        require_equal(mine, {**mine, "processor": "NOTHING"}, "a worker")
    with pytest.raises(UserError, match=r"ray None \(here"):  # one of an earlier release says nothing of it
        require_equal({**mine, "ray": "2"}, mine, "a worker")


def test_a_ray_that_starts_too_slowly_is_started_again_and_another_failure_is_a_line(monkeypatch):
    pytest.importorskip("ray")
    import ray

    from windtunnel.runtime.executors import ray_cluster

    said, started = ["The current node timed out during startup."] * 2 + ["no such host"], []

    def init(**given):
        started.append(given["address"])
        raise ConnectionError(said[len(started) - 1])

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=r"RAY_ADDRESS: local: no Ray cluster answers there \(no such host\)"):
        ray_cluster._connect()
    assert started == ["local"] * 3


@pytest.mark.slow
def test_a_worker_of_a_cluster_that_differs_is_refused_in_one_line(monkeypatch):
    """The driver is made to differ, so that a real actor is what is compared with it."""
    pytest.importorskip("ray")
    from windtunnel.runtime.executors import ray_cluster

    end_pool(ray_cluster)
    real, differs = versions(), {"device": "NVIDIA A100", "torch": "1.0"}
    monkeypatch.setattr(ray_cluster, "versions", lambda: {**real, **differs})
    monkeypatch.setenv(VARIABLE, "ray:1")
    with pytest.raises(UserError, match="a worker of the Ray cluster has ") as found:
        run_batches(batches_of(torch.arange(4), 2, 3, "it"), drawn, name="it")
    for key, there in differs.items():
        assert f"{key} {real[key]} (here {there})" in str(found.value)
    assert "\n" not in str(found.value)
    end_pool(ray_cluster)


def end_pool(ray_cluster):
    """A pool is kept from one piece of work to the next, and has been compared."""
    while ray_cluster._pools:
        ray_cluster._pools.popitem()[1].end()


@pytest.mark.slow
def test_no_worker_outlives_a_driver_that_was_killed(tmp_path):
    """SIGKILL tells nobody."""
    script = tmp_path / "driver.py"
    script.write_text(
        """
import time, torch
from windtunnel.core.batches import batches_of
from windtunnel.runtime.batch_runner import run_batches
def slow(batch):
    time.sleep(30)
    return {"x": batch.indices}
print("begun", flush=True)
run_batches(batches_of(torch.arange(8), 1, 0, "it"), slow, name="it")
"""
    )
    environment = {**os.environ, VARIABLE: "processes:2"}
    driver = subprocess.Popen([sys.executable, script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    driver.stdout.readline()
    process = psutil.Process(driver.pid)
    for _ in range(300):
        workers = [p for p in process.children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
        if len(workers) == 2:
            break
        time.sleep(0.1)
    time.sleep(3)
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_nothing_of_it_is_resolved():
    """A colleague's cache is the same wherever the work was done."""
    from windtunnel.operations.resolve.dependencies import WITHOUT_SAY

    assert {"cloudpickle", "ray"} <= WITHOUT_SAY
    assert Path("windtunnel.local.yaml") == LOCAL_FILE


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def slow_square(unit):
    time.sleep(0.05)
    return unit**2, os.getpid()


@pytest.mark.parametrize(
    ("worth", "processors", "asked", "workers"),
    [(0.1, 2, "", 2), (10.0, 2, "", 1), (0.1, 1, "", 1), (0.1, 2, "here", 1)],
)
def test_work_goes_on_in_other_processes_where_that_saves_time(
    worth, processors, asked, workers, monkeypatch, one_thread
):
    monkeypatch.setenv(VARIABLE, asked)
    monkeypatch.setattr(executors, "WORTH_WORKERS", worth)
    monkeypatch.setattr(executors, "share_of_processors", lambda: processors)
    monkeypatch.setattr(executors, "free_memory", lambda: 2**40)
    monkeypatch.setattr(executors, "_most_workers", 1)
    results = dict(executor().results(slow_square, range(8), "it"))
    assert {unit: square for unit, (square, _) in results.items()} == {unit: unit**2 for unit in range(8)}
    assert results[0][1] == os.getpid()  # what it measures
    assert executors.workers_used() == workers
    assert ({pid for _, pid in results.values()} != {os.getpid()}) == (workers > 1)


def test_work_that_cannot_be_sent_stays_here_without_a_word(monkeypatch, one_thread, capsys):
    lock = threading.Lock()
    monkeypatch.setattr(executors, "WORTH_WORKERS", 0.0)
    monkeypatch.setattr(executors, "share_of_processors", lambda: 2)
    monkeypatch.setattr(executors, "free_memory", lambda: 2**40)

    def work(unit):
        with lock:
            return slow_square(unit)

    assert {pid for _, (_, pid) in executor().results(work, range(4), "it")} == {os.getpid()}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("running", "share"), [(None, 8), (1, 8), (3, 2), (20, 1)])
def test_stages_side_by_side_share_the_processors(running, share, monkeypatch, tmp_path):
    monkeypatch.setattr(placement_module, "usable_processors", lambda: 8)
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "attack-pgd.json"))
    if running is not None:
        write_json(running, tmp_path / RUNNING_FILE)
    assert share_of_processors() == share
