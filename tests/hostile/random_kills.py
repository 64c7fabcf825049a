"""Kill `dvc repro` at random times, resume it, and compare: what CI does 4 times, and a person 200 times.

python -m tests.hostile.random_kills 200 --seed 7
python -m tests.hostile.random_kills 15 --seed 7 --command track

Every round runs the pipeline from nothing to its end, killed again and again on its way: DVC alone or its whole group, by
SIGKILL. After each kill nothing of it may be alive after 20 s; at the end of a round all bytes are those of a run that
nobody killed, and MLflow has one run of the state with each assessment once. `windtunnel repair` stands before
`dvc repro`, as in `make repro`.

With `--command` a command is killed once on its way and started again, which has to lead to the bytes of a run that nobody
killed, or end with one line that names the repairing command, after which it does. `track` begins without a store. Commands
and stages are forked from a process that has imported the libraries: a kill falls into work, seldom into an import.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from sklearn.datasets import load_digits

from tests.integration.clone import Clone
from tests.integration.preloaded import preloaded_commands
from windtunnel.records.files import RUNTIME_FILE

ORPHANS_END_IN = 20.0  # seconds
HANGS_AFTER = 400.0  # seconds that a command takes at most, a sweep of two experiments
A_ROUND = 25  # starts at most until a run is whole
PARAMS = """
seed: 0
device: cpu
data: {source: npz, path: test.npz, train_path: train.npz, value_range: [0, 16]}
model: {source: train, train: {architecture: mlp, epochs: 3}}
budget: {norm: Linf, epsilon: 0.05}
attacks:
  pgd: {library: torchattacks, algorithm: PGD, batch_size: 10, params: {steps: 20}}
verification:
  proof: {library: windtunnel, algorithm: cascade, timeout: 5, samples: {n: 6}}
corruptions:
  fog: {algorithm: fog, upsample: 32, severities: [3], samples: {n: 20}}
sanity: {profile: stored}
tracking: {experiment: test}
gate: {}
"""
ASSESSED = ("clean", "pgd", "proof", "fog")
COMMANDS = {
    "repro": ("dvc", "repro"),
    "track": ("windtunnel", "track"),
    "sweep": ("windtunnel", "sweep", "--budget", "epsilon=0.02,0.04", "--jobs", "1"),
    "retrain": ("windtunnel", "retrain", "--allow-dirty"),
}
NAMES_A_COMMAND = re.compile(r"(windtunnel repair|dvc queue (?!status)[a-z]+(?: --kill)?|rm [.\w/]+)")


@dataclass
class Tally:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    repairs: int = 0
    failures: list[str] = field(default_factory=list)

    def fails(self, line: str) -> None:
        """Something was not as it should be after the kills so far."""
        self.failures.append(f"after {self.kills.total()} kills: {line}")
        print("FAILURE:", self.failures[-1], flush=True)

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.kills.items()))
        return f"{self.kills.total()} kills ({kinds}) in {self.rounds} rounds, {self.repairs} repaired: {len(self.failures)} failures"


def random_kills(number: int, seed: int, folder: Path) -> Tally:
    """Kill `number` times. The tally holds a line for everything that was not as it should be."""
    clone, draw, tally = Clone(folder), random.Random(seed), Tally()
    write_digits(folder)
    clone.write_params(PARAMS)
    clone.commit("params")
    started = time.monotonic()
    clone.run("dvc", "repro")
    whole_run = time.monotonic() - started
    expected = digests(folder)
    while tally.kills.total() < number:
        wipe(clone)
        _one_round(clone, draw, tally, number, whole_run, expected)
        tally.rounds += 1
        print(f"{time.monotonic() - started:.0f} s: {tally}", flush=True)
    return tally


def killed_commands(command: str, number: int, seed: int, folder: Path) -> Counter[str]:
    """Kill a command `number` times, each from the same state, and count how the next start of it ended."""
    clone, draw, counts = Clone(folder), random.Random(f"{command} {seed}"), Counter[str]()
    write_digits(folder)
    clone.write_params(re.sub(r"verification:\n.*\n", "", PARAMS))  # seconds of every run, which the first form kills
    clone.commit("params")
    states = {"nothing": folder.with_name(f"{folder.name}.nothing"), "a run": folder.with_name(f"{folder.name}.run")}
    shutil.copytree(folder, states["nothing"], symlinks=True)
    clone.run("dvc", "repro", "gate")
    shutil.copytree(folder, states["a run"], symlinks=True)
    starts = ["nothing", "a run", "a run"] if command in {"repro", "retrain"} else ["a run"]
    expected, seconds = {}, {}
    for start in dict.fromkeys(starts):
        _restore(states[start], folder)
        code, said, seconds[start] = _real(clone, command)
        assert not code, said
        expected[start] = _outcome(clone)
    while counts.total() < number:
        start = draw.choice(starts)
        _restore(states[start], folder)
        at = draw.uniform(0.3, seconds[start])
        kind = draw.choice(["alone", "the group"])
        if not _killed_at(clone, command, at, kind):
            continue
        counts[_after_kill(clone, command, expected[start], f"{command} from {start}, {kind} at {at:.1f} s")] += 1
        print(command, dict(counts), flush=True)
    return counts


def _after_kill(clone: Clone, command: str, expected: object, what: str) -> str:
    """Start the command again, with what its line names where it is refused: `equal bytes`, `a line`, or what is wrong."""
    deadline = time.monotonic() + ORPHANS_END_IN
    while (left := alive_in(clone.folder)) and command != "sweep" and time.monotonic() < deadline:
        time.sleep(0.2)
    if left and command != "sweep":  # DVC's queue worker outlives whoever started it, and the next sweep meets it
        print("FAILURE:", what, "still alive:", [" ".join(p.cmdline()[:5]) for p in left], flush=True)
        return "other"
    code, said, _ = _real(clone, command)
    named = NAMES_A_COMMAND.search(said)
    if code and named:
        print(what, "->", said.strip()[-300:], flush=True)
        repairing = "windtunnel repair" if command == "repro" else named[1]
        clone.run(*repairing.split())
        code, said, _ = _real(clone, command)
    if code or (found := _outcome(clone)) != expected:
        parts = [] if code else [key for key in found if found[key] != expected[key]]  # type: ignore[index]
        print("FAILURE:", what, code, parts, said[-1500:], flush=True)
        return "other"
    return "a line" if named else "equal bytes"


def _restore(state: Path, folder: Path) -> None:
    for process in alive_in(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(5)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(state, folder, symlinks=True, dirs_exist_ok=True)
    for name in ("mlflow.db", "mlartifacts"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _real(clone: Clone, command: str) -> tuple[int, str, float]:
    """Run the command to its end, in real processes: its exit code, what it said, and its seconds."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            COMMANDS[command], cwd=clone.folder, env=_environment(clone), stdout=said, stderr=said
        )
        code = process.wait()
        said.seek(0)
        return code, said.read(), time.monotonic() - started


def _environment(clone: Clone) -> dict[str, str]:
    environment = clone.environment()
    return {**environment, "PATH": f"{preloaded_commands()}{os.pathsep}{environment['PATH']}"}


def _killed_at(clone: Clone, command: str, seconds: float, kind: str) -> bool:
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            COMMANDS[command],
            cwd=clone.folder,
            env=_environment(clone),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            (os.kill if kind == "alone" else os.killpg)(process.pid, signal.SIGKILL)
            process.wait()
            return True
        return False


def _outcome(clone: Clone) -> dict[str, object]:
    """The bytes of the results, the results of DVC's experiments, and what MLflow has, by name."""
    _, parents, children = clone.parents()
    locks = {}
    for line in clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").splitlines():
        if line.count("/") > 3:
            text = clone.run("git", "show", f"{line}:dvc.lock")
            locks[line.rsplit("/", 1)[1]] = re.findall(
                r"path: (reports/robustness\S*)\n\s+hash: md5\n\s+md5: (\S+)", text
            )
    return {
        **digests(clone.folder), "experiments": locks, "parents": len(parents),
        "children": Counter(str(run.data.tags["mlflow.runName"]) for run in children),
    }  # fmt: skip


def write_digits(folder: Path) -> None:
    """scikit-learn's digits as files, so that no stage imports scikit-learn for a second or two."""
    digits = load_digits()
    for name, rows in (("test", slice(0, 40)), ("train", slice(40, 600))):
        np.savez(folder / f"{name}.npz", x=digits.images[rows].astype(np.uint8), y=digits.target[rows])


def _one_round(
    clone: Clone, draw: random.Random, tally: Tally, number: int, whole_run: float, expected: dict[str, str]
) -> None:
    for attempt in range(A_ROUND):
        tally.repairs += clone.run("python", "-m", "windtunnel", "repair").count("repaired as by")
        with tempfile.TemporaryFile("w+") as said:  # no pipe: an orphan would hold it open, and we would wait for it
            process = subprocess.Popen(
                ["dvc", "repro"], cwd=clone.folder, env=clone.environment(), start_new_session=True,
                stdout=said, stderr=said,
            )  # fmt: skip
            try:
                # On a busy machine no stage may end between two kills: a round is then left to end by itself.
                last = tally.kills.total() >= number or attempt == A_ROUND - 1
                process.wait(None if last else draw.uniform(0.5, whole_run / 5))
            except subprocess.TimeoutExpired:
                _kill(process, draw, tally, clone.folder)
                continue
            said.seek(0)
            if process.returncode:
                tally.fails(f"attempt {attempt}: {said.read()[-1000:]}")
                return
        break
    found = digests(clone.folder)
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if different:
        tally.fails(f"other bytes in {', '.join(different)}")
    _, parents, children = clone.parents()
    names = Counter(run.data.tags["mlflow.runName"] for run in children)
    if len(parents) != 1 or names != dict.fromkeys(ASSESSED, 1):
        tally.fails(f"{len(parents)} runs of one state, children {dict(names)}")


def _kill(process: subprocess.Popen[str], draw: random.Random, tally: Tally, folder: Path) -> None:
    """SIGKILL for DVC alone, whose stage has to notice, or for all of it at once."""
    kind = draw.choice(["dvc alone", "the group"])
    with contextlib.suppress(ProcessLookupError):
        (os.kill if kind == "dvc alone" else os.killpg)(process.pid, signal.SIGKILL)
    process.wait()
    tally.kills[kind] += 1
    deadline = time.monotonic() + ORPHANS_END_IN
    while (left := alive_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    print(tally, flush=True)
    if left:
        lines = []
        for orphan in left:
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(orphan.cmdline()[:4]))
                orphan.kill()
        tally.fails(f"{kind} was killed, and after {ORPHANS_END_IN:g} s there is still: {'; '.join(lines)}")


def alive_in(folder: Path) -> list[psutil.Process]:
    """The processes whose current directory is in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file under reports/ that DVC knows of: all but runtime.json, which holds what was measured."""
    files = (path for path in sorted((folder / "reports").rglob("*")) if path.is_file() and path.name != RUNTIME_FILE)
    return {p.relative_to(folder / "reports").as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def wipe(clone: Clone) -> None:
    """As before the first run: no results, no cache, no lock, no tracking store."""
    for name in ("reports", ".cache", ".dvc/cache", ".dvc/tmp", "mlartifacts", "dvc.lock", "mlflow.db"):
        path = clone.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    clone.run("git", "checkout", "--", "reports")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=sorted(COMMANDS), help="kill this command once on its way, KILLS times")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.command:
            inside = Path(folder).resolve() / "clone"
            inside.mkdir()
            counts = killed_commands(arguments.command, arguments.kills, arguments.seed, inside)
            raise SystemExit(bool(counts["other"]))
        tally = random_kills(arguments.kills, arguments.seed, Path(folder).resolve())
    raise SystemExit(bool(tally.failures))


if __name__ == "__main__":
    main()
