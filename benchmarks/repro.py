"""`windtunnel repro` beside `dvc repro`: a cold run, and a run in which nothing changed. Ratios of one run.

    python -m benchmarks.repro [--mnist] [--repeats 3]

1. A cold run of the default project: `windtunnel repro`, whose stages run side by side, over `dvc repro` with every entry in
   one process (WINDTUNNEL_EXECUTOR=here). Wanted: at most 0.55 on two processors. With --mnist also three attacks and two
   verifications of LeNet5 on 1,000 MNIST images, where ../shared (WINDTUNNEL_SHARED) is.
2. Nothing changed: `dvc repro` and `windtunnel repro` over `dvc repro` of the same graph whose commands are `true`. Wanted: at
   most 1.5.

Every run has a folder and a cache of its own. The results of the two cold runs are compared by the digests in dvc.lock.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", ROOT.parent / "shared")).resolve()
ALONE = {"WINDTUNNEL_EXECUTOR": "here", "OMP_NUM_THREADS": "1"}
PARALLEL = [sys.executable, "-m", "windtunnel", "repro"]
SEQUENTIAL = [sys.executable, "-m", "dvc", "repro"]
# What run times and hosts decide, or the order of the runs.
DIFFERENT = re.compile(r"reports/(mlflow|tracking|gate)")


def project(folder: Path) -> Path:
    """Copy what git has of the project to a folder, without results, as a repository of its own."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if name != "dvc.lock" and not name.startswith(("tests/", "docs/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.rmtree(folder / ".dvc" / "cache", ignore_errors=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def on_mnist(folder: Path) -> None:
    """Let a project assess LeNet5 on 1,000 MNIST images: three attacks and two verifications."""
    path, images = folder / "params.yaml", SHARED / "data" / "mnist"
    params = yaml.safe_load(path.read_text())
    params["data"] = {
        "source": "idx",
        "path": str(images / "t10k-images-idx3-ubyte.gz"),
        "labels": str(images / "t10k-labels-idx1-ubyte.gz"),
        "samples": {"n": 1000},
    }
    params["model"] = {
        "source": "state_dict",
        "path": str(SHARED / "data" / "models" / "mnist_lenet5_advtrained.pt"),
        "factory": "windtunnel.boundary.models.architectures:lenet5",
    }
    params["budget"] = {"norm": "Linf", "epsilon": 0.1}
    params |= {family: {} for family in ("budgets", "queries", "corruptions", "sweeps", "latent", "generators")}
    params["attacks"] = {
        "fgsm": {"library": "torchattacks", "algorithm": "FGSM"},
        "pgd": {"library": "torchattacks", "algorithm": "PGD", "params": {"steps": 40}},
        "apgd": {"library": "torchattacks", "algorithm": "APGD", "params": {"steps": 40}},
    }
    params["verification"] = {
        "ibp": {"library": "auto-LiRPA", "algorithm": "ibp"},
        "crown-ibp": {"library": "auto-LiRPA", "algorithm": "crown-ibp"},
    }
    path.write_text(yaml.safe_dump(params))


def seconds(command: list[str], folder: Path, **variables: str) -> float:
    """Return how long a command takes. Ends with its output where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's second run finds the bytecode of the first
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}: ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return time.perf_counter() - start


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every output in dvc.lock that does not hold times."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    outs = (out for stage in stages.values() for out in stage.get("outs", ()))
    return {out["path"]: out["md5"] for out in outs if not DIFFERENT.match(out["path"])}


def cold(where: Path, name: str, *, mnist: bool) -> Path:
    """Print the ratio of two cold runs; return the folder of the parallel one."""
    folders, times = [], []
    for way, command, variables in (("sequential", SEQUENTIAL, ALONE), ("parallel", PARALLEL, {})):
        folder = project(where / f"{name} {way}".replace(" ", "-"))
        if mnist:
            on_mnist(folder)
        folders.append(folder)
        times.append(seconds(command, folder, **variables))
    first, second = map(digests, folders)
    other = sorted(path for path in first if first[path] != second.get(path))
    print(
        f"1. {name}, cold: dvc repro, one process {times[0]:.1f} s; windtunnel repro {times[1]:.1f} s: {times[1] / times[0]:.2f}"
    )
    print(
        f"   outputs equal: {len(first) - len(other)} of {len(first)}{'; other: ' + ', '.join(other) if other else ''}",
        flush=True,
    )
    return folders[1]


def unchanged(folder: Path, repeats: int) -> None:
    """Print the ratios of runs in which nothing changed, the fastest of several, alternating."""
    plain = folder.with_name("true")
    shutil.copytree(folder, plain, symlinks=True)
    path = plain / "dvc.yaml"
    path.write_text(re.sub(r"cmd: .*", "cmd: 'true'", path.read_text()))
    seconds([sys.executable, "-m", "dvc", "commit", "--force"], plain)
    ways = (("true", SEQUENTIAL, plain), ("dvc repro", SEQUENTIAL, folder), ("windtunnel repro", PARALLEL, folder))
    times: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for _ in range(repeats):
        for name, command, where in ways:
            times[name].append(seconds(command, where))
    fastest = {name: min(values) for name, values in times.items()}
    for name in ("dvc repro", "windtunnel repro"):
        print(
            f"2. nothing changed: {name} {fastest[name]:.2f} s; dvc repro of the same graph with `true` {fastest['true']:.2f} s: "
            f"{fastest[name] / fastest['true']:.2f}"
        )


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", action="store_true", help="three attacks and two verifications on MNIST too")
    parser.add_argument("--repeats", type=int, default=3, help="runs in which nothing changed (default: 3)")
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        unchanged(cold(Path(folder), "default project", mnist=False), arguments.repeats)
        if arguments.mnist:
            cold(Path(folder), "LeNet5, 1,000 MNIST images", mnist=True)


if __name__ == "__main__":
    main()
