"""Run the stages of dvc.yaml that changed, several at once; DVC's own functions decide, restore, save and lock.

Each stage is a process of its own, as under `dvc repro`. On Linux it is forked from a server that has imported torch once.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing as mp
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil

from windtunnel.core.errors import USER_ERROR, InfrastructureError, UserError
from windtunnel.core.machine import free_memory
from windtunnel.operations.dvc_files import read_lock
from windtunnel.params.resolved import read_resolved, resolved_file
from windtunnel.records.files import read_json, read_own, write_json
from windtunnel.records.layout import LOCK
from windtunnel.records.run_times import Runtime
from windtunnel.runtime.placement import PROGRESS_FILE, RUNNING_FILE
from windtunnel.runtime.shutdown import deaf_children, no_main_module
from windtunnel.runtime.stage_log import stage_runtime
from windtunnel.runtime.supervised import end_with_parent

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage

_OURS = re.compile(r"python3? -m (?P<module>stages\.\w+|windtunnel) ?(?P<arguments>[\w.\- ]*)")
_WITHOUT_TORCH = frozenset({"resolve", "gate", "track"})
# torch, and what nearly every stage imports: figures with matplotlib, and scipy.stats by torchattacks and the checks.
_PRELOADED = ("torch", "windtunnel.operations.stages.entry", "windtunnel.assessments.figures.paint", "scipy.stats")
_POLL = 0.05  # seconds
_TELL_EVERY = 60.0  # seconds between lines where there is no terminal
_MEMORY_OF_A_STAGE = 2**30  # bytes, until a stage has shown what it takes
_USUAL_SECONDS = 3.0  # of a stage that has not run yet, for the order in which stages start


def visible_gpus(device: str) -> list[str]:
    """Return the names by which CUDA_VISIBLE_DEVICES selects the GPUs that a run on `device` uses; torch is not imported."""
    if device not in {"auto", "cuda"} or shutil.which("nvidia-smi") is None:
        return []
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in chosen.split(",") if name.strip()]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [str(i) for i, _ in enumerate(line for line in listed.stdout.splitlines() if line.startswith("GPU "))]


def reproduce(targets: Sequence[str], jobs: int, gpus: Sequence[str] = (), *, pull: bool | None = None) -> None:
    """Bring the stages `targets` (all for none) and what they depend on up to date, at most `jobs` at a time.

    Args:
        targets: names of stages as `dvc repro` takes them.
        jobs: processes at most; with GPUs also at most one for each.
        gpus: values of CUDA_VISIBLE_DEVICES.
        pull: fetch what is missing from the DVC remote; None for yes if there is a default remote.

    Raises:
        UserError: a stage refused what it read; its line was printed.
        InfrastructureError: a stage failed otherwise, or DVC did.
    """
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)  # else a line each time that dvc.lock is written
    try:
        with Repo() as repo, tempfile.TemporaryDirectory(prefix="windtunnel-repro-") as scratch:
            most = min(jobs, len(gpus)) if gpus else jobs
            with repo.scm_context(quiet=True):
                _Reproduction(repo, most, list(gpus), Path(scratch), pull).run(targets)
    except NotDvcRepoError as error:
        raise UserError("repro: this is no DVC repository; run dvc init, or go to where dvc.yaml is") from error
    except DvcException as error:
        raise InfrastructureError(f"repro: {error}") from error


@dataclass
class _Running:
    """A running stage. resources: released at its end: DVC's lock of its files, and its GPU."""

    label: str
    stage: Stage
    process: mp.process.BaseProcess | subprocess.Popen[bytes]
    log: Path
    started: float
    resources: ExitStack
    most_memory: int = 0

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self.process.poll() if isinstance(self.process, subprocess.Popen) else self.process.exitcode

    def memory(self) -> int:
        """Return the bytes of this process and its children now; the peak is remembered."""
        total = 0
        with suppress(psutil.Error):
            process = psutil.Process(self.process.pid)
            for member in (process, *process.children(recursive=True)):
                total += member.memory_info().rss
        self.most_memory = max(self.most_memory, total)
        return total

    def words(self) -> str:
        """Return the line for the view: name, share done, time left, as the stage last wrote them."""
        took = timedelta(seconds=round(time.monotonic() - self.started))
        progress: dict[str, float] = {}
        with suppress(UserError):
            progress = cast("dict[str, float]", read_json(self.log.with_suffix(".json")))
        if not progress.get("total"):
            return f"{self.label}: {took}"
        completed, total, rate = progress["completed"], progress["total"], progress["rate"]
        remaining = timedelta(seconds=round((total - completed) / rate)) if rate else "?"
        return f"{self.label}: {completed / total:.0%}, {took}, {remaining} left"


@dataclass
class _Reproduction:
    """One call of `reproduce`. measured: the most bytes of each stage in its last run, where that is known."""

    repo: Repo
    jobs: int
    gpus: list[str]
    scratch: Path
    pull: bool | None
    running: list[_Running] = field(default_factory=list)
    measured: dict[str, int] = field(default_factory=dict)
    largest: int = _MEMORY_OF_A_STAGE
    unchanged: int = 0

    def run(self, targets: Sequence[str]) -> None:
        """See `reproduce`."""
        from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro

        with self._locked():
            chosen = collect_stages(self.repo, targets or ["dvc.yaml"])
            graph = get_active_graph(self.repo.index.graph)
            plan = plan_repro(graph, chosen)
        needs = {stage: {other for other in graph.successors(stage) if other in set(plan)} for stage in plan}
        weights = {}
        for stage in plan:
            label, _, name = stage.addressing.partition("@")
            last = stage_runtime(label, name) or Runtime()
            weights[stage] = last.seconds or _USUAL_SECONDS
            if last.peak_memory:
                self.measured[stage.addressing] = last.peak_memory
        # The longest way to the end decides what starts first; `plan` has every stage after those it needs.
        ways = dict(weights)
        for stage in reversed(plan):
            for other in needs[stage]:
                ways[other] = max(ways[other], weights[other] + ways[stage])
        locked_before = list(read_lock(LOCK))
        waiting, done = sorted(plan, key=lambda stage: -ways[stage]), set[object]()
        with _view(self.running), self._ended_on_error():
            while waiting or self.running:
                for stage in [s for s in waiting if needs[s] <= done]:
                    if not self._has_room(stage.addressing):
                        break
                    built_on = _built_on(stage.addressing)
                    needs[stage] |= {other for other in plan if other.addressing in built_on}
                    if not needs[stage] <= done:
                        continue
                    waiting.remove(stage)
                    if not self._begin(stage):
                        done.add(stage)
                done |= {job.stage for job in self._finished()}
        with self._locked():
            _order_lock([*locked_before, *(stage.addressing for stage in plan)])
        if self.unchanged:
            print(f"{self.unchanged} of {len(plan)} stages are up to date", flush=True)

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        """End the running stages after a failure elsewhere: their results would not be saved."""
        try:
            yield
        except BaseException:
            for job in self.running:
                job.process.terminate()
            raise

    def _has_room(self, label: str) -> bool:
        """Return True if a stage may start: a process is free, and so is the memory that it and those that run may yet take.

        A stage takes what it took the last time; one that has not run yet, what the largest of this run did.
        """
        if not self.running:
            return True
        if len(self.running) >= self.jobs:
            return False
        memory_now = [job.memory() for job in self.running]
        self.largest = max(self.largest, *(job.most_memory for job in self.running))
        most = [max(self.measured.get(job.label, self.largest), job.most_memory) for job in self.running]
        return free_memory() > self.measured.get(label, self.largest) + sum(most) - sum(memory_now)

    def _begin(self, stage: Stage) -> bool:
        """Start a stage, unless it is up to date or DVC restores it; return whether it runs."""
        from dvc.rwlock import rwlock
        from dvc.stage.cache import RunCacheNotFoundError

        label = stage.addressing
        with self._locked(), ExitStack() as resources:
            if stage.frozen or not stage.cmd or not stage.changed():
                self.unchanged += 1
                return False
            stage.remove_outs(ignore_remove=False, force=False)
            try:
                self.repo.stage_cache.restore(stage, pull=self._pulls())
                self._save(stage)
                print(f"{label}: restored from the cache", flush=True)
                return False
            except RunCacheNotFoundError:
                stage.save_deps()
            read, write = ([item.fs_path for item in items] for items in (stage.deps, stage.outs))
            hard = self.repo.config["core"].get("hardlink_lock", False)
            cmd = " ".join(sys.argv)
            resources.enter_context(rwlock(self.repo.tmp_dir, self.repo.fs, cmd, read, write, hard))
            environment = {}
            if self.gpus:
                gpu = environment["CUDA_VISIBLE_DEVICES"] = self.gpus.pop(0)
                resources.callback(self.gpus.append, gpu)
            log = self.scratch / f"{label.replace('@', '-')}.log"
            environment[PROGRESS_FILE] = str(log.with_suffix(".json"))
            process = _start(stage, environment, log)
            self.running.append(_Running(label, stage, process, log, time.monotonic(), resources.pop_all()))
            self._note_running()
        return True

    def _finished(self) -> Iterator[_Running]:
        """Yield the stages that ended since the last call, saved and locked. Raises for one that failed, when all have ended."""
        time.sleep(_POLL)
        failed: tuple[str, int] | None = None
        while True:
            for job, code in [(job, code) for job in self.running if (code := job.exit_code()) is not None]:
                self.running.remove(job)
                self._note_running()
                _print_log(job)
                with self._locked():
                    if code == 0:
                        self._save(job.stage)
                    job.resources.close()
                if code == 0:
                    yield job
                else:
                    failed = failed or (job.label, code)
            if not failed or not self.running:
                break
            time.sleep(_POLL)
        if failed:
            label, code = failed
            line = f"repro: {label} failed with exit code {code}; its lines above say why. What is finished is kept"
            raise UserError(line) if code == USER_ERROR else InfrastructureError(line)

    def _note_running(self) -> None:
        """Write how many stages run, for those that could use the processors of stages that have ended."""
        write_json(len(self.running), self.scratch / RUNNING_FILE)

    def _save(self, stage: Stage) -> None:
        """Save the outputs of a stage, and lock it, as `dvc repro` does after its command."""
        self.repo._reset()  # the stage may have written a .dvcignore
        cached = all(out.use_cache or out.is_metric or out.is_plot for out in stage.outs)
        stage.save(run_cache=cached)
        stage.commit()
        stage.dump(update_pipeline=False)

    def _pulls(self) -> bool:
        """Return True if what is missing is fetched from the remote; the records of its runs are fetched once."""
        if self.pull is None:
            self.pull = bool(self.repo.config["core"].get("remote"))
            if self.pull:
                try:
                    self.repo.stage_cache.pull(None)
                except Exception as error:  # DVC's file systems raise what they like; everything can be computed
                    print(f"windtunnel: repro: the DVC remote returned nothing ({error})", file=sys.stderr, flush=True)
                    self.pull = False
        return self.pull

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Acquire DVC's repository lock, which DVC too releases while stages run."""
        with self.repo.lock:
            try:
                yield
            finally:
                self.repo.state.close()


def _built_on(label: str) -> Collection[str]:
    """Return the labels of the entries whose results a stage reads, as `resolve` noted them; dvc.yaml does not name them."""
    stage, _, name = label.partition("@")
    return read_resolved(stage, name).work.builds_on if resolved_file(stage, name).is_file() else ()


def _order_lock(labels: Sequence[str]) -> None:
    """Bring the stages of dvc.lock into this order, in which `dvc repro` would have written them."""
    from dvc.utils.serialize import modify_yaml

    present = list(read_lock(LOCK))
    order = [label for label in dict.fromkeys((*labels, *present)) if label in present]
    if order != present:
        with modify_yaml(LOCK) as content:
            content["stages"] = {label: content["stages"][label] for label in order}


def _start(stage: Stage, environment: dict[str, str], log: Path) -> mp.process.BaseProcess | subprocess.Popen[bytes]:
    """Start the command of a stage: ours forked from the server that has imported torch, any other in a shell."""
    from dvc.stage.run import prepare_kwargs

    match = _OURS.fullmatch(stage.cmd) if isinstance(stage.cmd, str) else None
    arguments = [match["module"].removeprefix("stages."), *match["arguments"].split()] if match else []
    is_here = Path(stage.wdir).resolve() == Path.cwd()
    if match and is_here and sys.platform == "linux" and not _WITHOUT_TORCH & {*arguments}:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOADED])
        process = context.Process(target=_run_module, args=(match["module"], arguments[1:], environment, log))
        with no_main_module(), deaf_children():
            process.start()
        return process
    commands = stage.cmd if isinstance(stage.cmd, list) else [stage.cmd]
    kwargs = prepare_kwargs(stage, environment)
    with deaf_children(), log.open("wb") as file:
        return subprocess.Popen(
            " && ".join(commands), shell=True, cwd=kwargs["cwd"], env=kwargs["env"], stdout=file, stderr=file
        )


def _run_module(module: str, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
    """Run `python -m module arguments` in this process, which was forked for it."""
    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, os.getcwd())
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # a forked process of multiprocessing ends without them


def _print_log(job: _Running) -> None:
    lines = read_own(job.log).decode("utf-8", "replace").splitlines() if job.log.is_file() else []
    for line in lines:
        if line.strip() and line != f"{job.label}: started":
            print(line, flush=True)


@contextmanager
def _view(running: Iterable[_Running]) -> Iterator[None]:
    """Show the running stages: live on a terminal, elsewhere as one line a minute."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console, over = Console(stderr=True), threading.Event()
    if console.is_terminal:
        with Live(
            get_renderable=lambda: Group(*(Text(job.words()) for job in [*running])),
            console=console,
            transient=True,
            refresh_per_second=2,
            redirect_stdout=True,
            redirect_stderr=True,
        ):
            yield
        return

    def tell() -> None:
        while not over.wait(_TELL_EVERY):
            if lines := [job.words() for job in [*running]]:
                print(f"running: {'; '.join(lines)}", file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()
