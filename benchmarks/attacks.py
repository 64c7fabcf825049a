"""Attacks: what the accounting costs, what attacking only survivors saves, and how memory grows. Ratios of one run.

    python -m benchmarks.attacks [--peer PYTHON] [--peer-script raitap_peer.py] [--n 200] [--quick]

1. Per attack: wall time of `assess` over that of the library called directly on the same correctly classified samples in
   one batch, the fastest of alternating repeats. Wanted: at most 1.05 at equal work.
2. Ten attacks, each on what the others left (`survivors_of`), against the same ten one after another on every sample: the
   library's own calls, and, with --peer (the python of an environment that has raitap 0.14), the closest peer. Wanted: at
   least 2.5 times faster at the same worst case. The gain has a limit, which is printed: who survives is attacked by all ten.
3. Peak memory of `assess` and of writing its artifacts at a batch size of 100, for data sets of growing size, each in a
   process of its own. Wanted: nothing beyond the inputs and the examples grows with the data set.

MNIST and two LeNet5, one of them adversarially trained, where ../shared (WINDTUNNEL_SHARED) is; else digits and a CNN.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.assess import assess
from windtunnel.assessments.attacks.profiles import Member
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.boundary.models.training import train_classifier
from windtunnel.boundary.params import load_params
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.subject import Subject, subject_of
from windtunnel.params.attacks import AttackEntry, On
from windtunnel.params.data import Data
from windtunnel.params.entry import Budget
from windtunnel.params.model import Model, Recipe
from windtunnel.records.artifacts import Artifacts, write_artifacts
from windtunnel.runtime import batch_runner

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))
BATCH = 128
TEN = (
    Member("torchattacks", "FGSM"),
    Member("torchattacks", "BIM", {"steps": 20}),
    Member("torchattacks", "PGD", {"steps": 40}),
    Member("torchattacks", "MIFGSM", {"steps": 20}),
    Member("foolbox", "LinfPGD"),
    Member("torchattacks", "APGD", {"steps": 50, "seed": 0}),
    Member("torchattacks", "VNIFGSM", {"steps": 10}),
    Member("foolbox", "LinfDeepFoolAttack"),
    Member("torchattacks", "APGDT", {"steps": 20, "seed": 0}),
    Member("torchattacks", "Square", {"n_queries": 1000, "seed": 0}),
)


def subjects(n: int) -> list[tuple[str, Subject, tuple[float, ...]]]:
    """(name, model and `n` samples, epsilons): the reference models on MNIST, or a CNN on digits."""
    folder = SHARED / "data"
    if not folder.is_dir():
        assessed, train = load_dataset(Data(samples={"n": n, "selection": "stratified"}), 0)
        assert train is not None
        module = train_classifier(Recipe(architecture="cnn", epochs=8), train, 0, torch.device("cpu"))
        return [("CNN on digits", of_module(module, assessed), (0.1, 0.2))]
    images, labels = (folder / "mnist" / f"t10k-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1"))
    assessed, _ = load_dataset(Data(source="idx", path=str(images), labels=str(labels), samples={"n": n}), 0)
    found = []
    for name, file, epsilons in (
        ("LeNet5", "mnist_lenet5_clntrained.pt", (0.3, 0.1)),
        ("LeNet5, adversarially trained", "mnist_lenet5_advtrained.pt", (0.3,)),
    ):
        source = Model(
            source="state_dict",
            path=str(folder / "models" / file),
            factory="windtunnel.boundary.models.architectures:lenet5",
        )
        found.append((name, subject_of(preview_classifier(source, assessed, None, "cpu"), assessed), epsilons))
    return found


def of_project(folder: Path, n: int) -> Subject:
    """Return the model of the project in `folder` and `n` of its samples, selected as its params.yaml says."""
    with chdir(folder):
        params = load_params()
        samples = params.data.samples.model_copy(update={"n": n})
        data, train = load_dataset(params.data.model_copy(update={"samples": samples}), 0)
        return subject_of(preview_classifier(params.model, data, train, "cpu"), data)


def of_module(module: nn.Module, data: Dataset) -> Subject:
    module.requires_grad_(False).eval()
    shape = tuple(data.inputs.shape[1:])
    model = Classifier(module, 10, shape, frozenset(Capability), module_digest(module), "benchmark")
    return subject_of(model, data)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def budget(epsilon: float) -> Budget:
    return Budget(norm=Norm.LINF, epsilon=epsilon)


def entry(member: Member, batch_size: int) -> AttackEntry:
    return AttackEntry(
        library=member.library, algorithm=member.algorithm, params=dict(member.params), batch_size=batch_size
    )


def direct(member: Member, model: nn.Module, inputs: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """The library's own call, as its manual shows it; whether each sample is within the budget and misclassified."""
    if member.library == "torchattacks":
        import torchattacks

        found = getattr(torchattacks, member.algorithm)(model, eps=epsilon, **member.params)(inputs, labels)
    else:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        attack = getattr(foolbox.attacks, member.algorithm)(**member.params)
        # DeepFool finds its own distance, which is held against the budget below.
        found = attack(wrapped, inputs, labels, epsilons=None if "DeepFool" in member.algorithm else epsilon)[1]
    with torch.no_grad():
        wrong: Tensor = model(found).argmax(1) != labels
    return wrong & ((found - inputs).flatten(1).abs().amax(1) <= epsilon * (1 + 1e-5) + 1e-6)


def overhead(it: Subject, epsilon: float, repeats: int) -> None:
    right = it.subset(it.clean_correct.nonzero().flatten())
    inputs, labels = right.dataset.inputs, right.dataset.targets
    print(
        f"1. windtunnel / library on {len(labels)} samples in one batch, the fastest of {repeats} alternating repeats"
    )
    print("   (in brackets the library against itself, every other repeat: what the machine alone does)")
    ratios = []
    for member in TEN:
        ours, theirs = [], []
        for _ in range(repeats):
            theirs.append(seconds(lambda m=member: direct(m, right.classifier.module, inputs, labels, epsilon)))
            ours.append(seconds(lambda m=member: assess("bench", entry(m, len(inputs)), budget(epsilon), right)))
        ratios.append(min(ours) / min(theirs))
        itself = min(theirs[::2]) / min(theirs[1::2])
        print(f"  {member.algorithm:20s} {min(theirs):8.3f} s  {ratios[-1]:5.2f}  ({itself:.2f})", flush=True)
    print(f"  {'geometric mean':20s} {'':8s}    {statistics.geometric_mean(ratios):5.2f}")


def library_on_all(it: Subject, epsilon: float) -> tuple[float, float]:
    """(seconds, worst case) of the libraries' own calls on every sample, in our batches."""
    standing = it.clean_correct.clone()
    start = time.perf_counter()
    for member in TEN:
        torch.manual_seed(0)
        for rows in torch.arange(len(standing)).split(BATCH):
            inputs, labels = it.dataset.inputs[rows], it.dataset.targets[rows]
            standing[rows] &= ~direct(member, it.classifier.module, inputs, labels, epsilon)
    return time.perf_counter() - start, float(standing.double().mean())


def peer_on_all(it: Subject, epsilon: float, python: str, script: str) -> tuple[float, float]:
    """(seconds, worst case) of raitap's assessors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save(it.classifier.module, folder / "model.pt")
        np.savez(folder / "data.npz", x=it.dataset.inputs.numpy(), y=it.dataset.targets.numpy())
        rows = [[m.library, m.algorithm, dict(m.params)] for m in TEN]
        (folder / "attacks.json").write_text(json.dumps(rows))
        source = Path(__file__).parents[1] / "src"  # the class of the pickled model
        ran = subprocess.check_output(
            [python, str(Path(__file__).with_name("raitap_attacks.py")), name, script, str(epsilon)],
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
    line = json.loads(ran.strip().splitlines()[-1])
    return sum(line["seconds"]), float(line["worst_case"])


def on_survivors(it: Subject, epsilon: float) -> tuple[float, float]:
    """(seconds, worst case) of ten assessments, each `on: survivors_of` all before it, artifacts included."""
    done: dict[str, Artifacts] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for member in TEN:
            given = entry(member, BATCH)
            if done:
                given = given.model_copy(update={"on": On(survivors_of=list(done))})
            result = assess(member.algorithm, given, budget(epsilon), it, done)
            done[member.algorithm] = write_artifacts(result, Path(folder) / member.algorithm, it, started=0.0)
        took = time.perf_counter() - start
    broken = torch.stack([one.tensor("verdicts") == Verdict.ATTACK_SUCCEEDED for one in done.values()]).any(0)
    return took, float((it.clean_correct & ~broken).double().mean())


def ten(name: str, it: Subject, epsilon: float, peer: str | None, script: str) -> None:
    took, worst = on_survivors(it, epsilon)
    print(f"2. ten attacks, {name}, Linf {epsilon}, {len(it.dataset)} samples")
    print(
        f"  {'on survivors':14s} {took:8.2f} s  worst case {worst:.3f}  (limit of the gain: {1 / max(worst, 1e-9):.3g})"
    )
    others = {"library on all": lambda: library_on_all(it, epsilon)}
    if peer:
        others["peer on all"] = lambda: peer_on_all(it, epsilon, peer, script)
    for what, run in others.items():
        theirs, theirs_worst = run()
        print(f"  {what:14s} {theirs:8.2f} s  worst case {theirs_worst:.3f}  {theirs / took:5.2f} times", flush=True)


def resident(key: str) -> float:
    """VmRSS or VmHWM of this process, MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) / 1024


def memory_of(n: int) -> dict[str, float]:
    """FGSM on `n` colour images of 64 px: MiB of the inputs, and by how much assessing and writing raises the peak."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(n, 3, 64, 64, generator=generator)
    module = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    classes = tuple(map(str, range(10)))
    labels = torch.cat([module(part).argmax(1) for part in inputs.split(100)])
    it = of_module(module, Dataset(inputs, labels, tuple(map(str, range(n))), classes))
    given = entry(Member("torchattacks", "FGSM"), 100)
    with tempfile.TemporaryDirectory() as folder:
        batch_runner.CHECKPOINTS = Path(folder)
        assess("warm", given, budget(0.1), it.subset(torch.arange(100)))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident("VmRSS")
        write_artifacts(assess("bench", given, budget(0.1), it), Path(folder) / "bench", it, started=0.0)
    return {"inputs": inputs.nbytes / 2**20, "raised": resident("VmHWM") - before}


def memory(sizes: tuple[int, ...]) -> None:
    print("3. peak memory, FGSM in batches of 100 on images of 3x64x64")
    for n in sizes:
        found = json.loads(subprocess.check_output([sys.executable, __file__, "--memory", str(n)], text=True))
        rest = found["raised"] - found["inputs"]
        print(
            f"  {n:6d} samples  inputs {found['inputs']:7.1f} MiB  the examples as much, and {rest:6.1f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="python of the peer's environment")
    parser.add_argument("--peer-script", default=str(SHARED / "bench" / "raitap_peer.py"))
    parser.add_argument("--n", type=int, default=200, help="samples")
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples, one repeat")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(json.dumps(memory_of(options.memory)))
        return
    found = subjects(options.n // 4 if options.quick else options.n)
    _, first, epsilons = found[0]
    overhead(first, epsilons[0], 2 if options.quick else 5)
    for name, it, at in found:
        for epsilon in at:
            ten(name, it, epsilon, options.peer, options.peer_script)
    memory((500, 2000) if options.quick else (500, 2000, 8000))


if __name__ == "__main__":
    main()
