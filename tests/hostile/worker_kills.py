"""Kill workers and drivers of one job on a Ray cluster of three local nodes: what CI does a few times, and a person 60 and 20 times.

python -m tests.hostile.worker_kills 60 20 --seed 7

The job is PGD in batches of about half a second, so many that it outlasts the kills (one that ends before begins again, and is counted).
Workers and drivers end by SIGKILL after a random number of batches; a driver is started again with another number of workers. At the
end all bytes are those of a run in one process that nobody killed, no more batches were done twice than there were kills, and nothing
of a driver that was killed is alive.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from windtunnel.runtime.placement import VARIABLE

NODES, STARTS = 3, 5
# A kill is due when the workers have begun and finished so many batches more, at most; a clock would kill all of them on a busy machine
# before one has begun. Half of these notes come between two kills, two of them of each batch: the job outlasts the kills.
NOTES_PER_KILL, BATCHES_PER_KILL = 20, 8
LOOK_EVERY = 0.05  # seconds
ORPHANS_END_IN = 60.0  # seconds: Ray notices that a driver is gone, and ends its actors
DRIVER = """
import os, sys, time
from pathlib import Path
import torch, torchattacks
from windtunnel.records.artifacts import save_tensors
from windtunnel.core.batches import batches_of
from windtunnel.runtime.batch_runner import run_batches
from windtunnel.runtime.batch_runner import Checkpoint
from windtunnel.core.seeds import seeded

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).eval()
inputs = torch.rand(8 * {batches}, 1, 8, 8)
log, pause = Path.cwd() / "log", float(sys.argv[1])

def note(word, batch):
    with log.open("a") as file:
        print(word, batch.number, file=file)

def work(batch):
    note("begun", batch)
    x = inputs[batch.indices]
    with seeded(batch.seed):
        found = torchattacks.PGD(model, eps=0.1, steps=10)(x, model(x).argmax(1))
    time.sleep(pause)
    with log.open("a") as file:
        file.write(f"{{batch.number}}\\n")
    return {{"x": found, "logits": model(found).detach()}}

checkpoint = Checkpoint("job", "resolved", [], Path("checkpoints"))
found = run_batches(batches_of(torch.arange(len(inputs)), 8, 3, "job"), work, name="job", checkpoint=checkpoint)
save_tensors(found, Path("result.pt"))
"""


@dataclass
class Tally:
    """What happened. begun, done: how many more of them there were than batches."""

    kills: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    done: int = 0
    rounds: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}s" for kind, number in sorted(self.kills.items()))
        again = f"{self.done} batches were done again, {self.begun} begun again"
        return f"{kinds or 'nobody'} killed in {self.rounds} jobs; {again}: {len(self.failures)} failures"


def worker_kills(workers: int, drivers: int, seed: int, folder: Path, pause: float = 0.5) -> Tally:
    """Kill so many. The tally holds a line for everything that was not as it should be."""
    draw, tally, batches = random.Random(seed), Tally(), BATCHES_PER_KILL * (workers + drivers)
    (folder / "driver.py").write_text(DRIVER.format(batches=batches))
    subprocess.run(_command(0), cwd=folder, env=_environment("here", ""), check=True)
    expected = (folder / "result.pt").read_bytes()
    cluster = _cluster()
    try:
        due = ["worker"] * workers + ["driver"] * drivers
        draw.shuffle(due)
        while due:
            whole = _one_job(folder, cluster.address, draw, due, tally, pause)
            if whole and (folder / "result.pt").read_bytes() != expected:
                tally.failures.append(f"after {tally.kills.total()} kills: other bytes")
    finally:
        cluster.shutdown()
    return tally


def _cluster() -> Any:
    """A Ray cluster of three nodes of one processor each. Ray gives a node 30 s to start, which a busy machine may exceed."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    for attempt in range(STARTS):
        cluster = None
        try:
            cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
            for _ in range(NODES - 1):
                cluster.add_node(**node)
            cluster.wait_for_nodes(timeout=300)
            return cluster
        except Exception:  # Ray raises just that
            if cluster:
                cluster.shutdown()
            if attempt == STARTS - 1:
                raise
    return None


def _command(pause: float) -> list[str]:
    return [sys.executable, "driver.py", str(pause)]


def _environment(where: str, address: str) -> dict[str, str]:
    return {**os.environ, VARIABLE: where, "RAY_ADDRESS": address, "OMP_NUM_THREADS": "1"}


def _one_job(folder: Path, address: str, draw: random.Random, due: list[str], tally: Tally, pause: float) -> bool:
    for name in ("log", "result.pt"):
        (folder / name).unlink(missing_ok=True)
    subprocess.run(["rm", "-rf", "checkpoints"], cwd=folder, check=True)
    before = tally.kills.total()
    said, driver = folder / "said", _started(folder, address, draw, pause)
    next_kill = draw.randint(1, NOTES_PER_KILL)
    while driver.poll() is None:
        time.sleep(LOOK_EVERY)
        if not due or (notes := len(_notes(folder))) < next_kill or not (actors := _actors(address)):
            continue
        # Some kills hit workers that have just begun, some strike a batch twice.
        kind, next_kill = due.pop(), notes + draw.randint(1, NOTES_PER_KILL)
        with contextlib.suppress(psutil.Error):
            (psutil.Process(driver.pid) if kind == "driver" else draw.choice(actors)).kill()
        tally.kills[kind] += 1
        if kind == "driver":
            driver.wait()
            _, alive = psutil.wait_procs(actors, ORPHANS_END_IN)
            if alive:
                tally.failures.append(f"after {tally.kills.total()} kills: {len(alive)} workers outlived their driver")
            driver = _started(folder, address, draw, pause)
        print(tally, flush=True)
    tally.rounds += 1
    if driver.returncode:
        tally.failures.append(f"after {tally.kills.total()} kills: {said.read_text()[-500:]}")
        due.clear()
        return False
    notes = Counter(_notes(folder))
    again = {word: sum(n - 1 for note, n in notes.items() if note.startswith(word)) for word in ("begun", "done")}
    tally.begun, tally.done = tally.begun + again["begun"], tally.done + again["done"]
    if again["done"] > tally.kills.total() - before:
        tally.failures.append(f"{again['done']} batches were done again after {tally.kills.total() - before} kills")
    return True


def _notes(folder: Path) -> list[str]:
    """What the workers have begun and finished so far: `begun 7`, `done 7`."""
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def _started(folder: Path, address: str, draw: random.Random, pause: float) -> subprocess.Popen[bytes]:
    environment = _environment(f"ray:{draw.randint(2, NODES)}", address)
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(_command(pause), cwd=folder, env=environment, stdout=said, stderr=said)


def _actors(address: str) -> list[psutil.Process]:
    """The processes of the actors of this cluster: its raylets started them, and others on the machine are not ours to kill or count."""
    found = []
    for raylet in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            program, *words = raylet.cmdline() or [""]
            if Path(program).name == "raylet" and any(
                w.startswith("--gcs-address=") and w.endswith(address) for w in words
            ):
                found += [child for child in raylet.children(recursive=True) if _is_actor(child)]
    return found


def _is_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[:1][0].startswith("ray::Actor")
    return False


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", type=int, nargs="?", default=60)
    parser.add_argument("drivers", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        tally = worker_kills(arguments.workers, arguments.drivers, arguments.seed, Path(folder).resolve())
        print(f"{time.monotonic() - started:.0f} s: {tally}", *tally.failures, sep="\n")
    raise SystemExit(bool(tally.failures))


if __name__ == "__main__":
    main()
