"""What attacks through the float twin break of MLPerf Tiny's int8 ResNet-8, beside Square with ten times their queries.

    python benchmarks/twin.py [--n 100] [--epsilons 1,2,4,8] (of 255)

Needs ../shared and ai-edge-litert. A query is a sample that goes through the int8 file; the twin's backward passes are counted
apart. The files and the twin are those of examples/resnet8-int8. Prints a row per epsilon and attack.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from ruamel.yaml import YAML

from windtunnel.assessments.attacks.assess import assess
from windtunnel.boundary.data.load import load_dataset
from windtunnel.boundary.models.load import preview_classifier
from windtunnel.core.contracts import Norm
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.params.attacks import AttackEntry
from windtunnel.params.entry import Budget

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet8-int8"
STEPS = 10


def deployed(folder: Path, n: int) -> Subject:
    """Return the int8 file with its twin, and the first n images; changes to a folder below `folder`."""
    shutil.copytree(EXAMPLE, folder / "it")
    subprocess.run([sys.executable, "prepare.py", "--samples", str(n)], cwd=folder / "it", check=True)
    os.chdir(folder / "it" / "int8")
    sys.path.insert(0, str(folder / "it"))
    params = validate(YAML(typ="safe", pure=True).load(Path("params.yaml").read_text()))
    dataset, _ = load_dataset(params.data, params.seed)
    return subject_of(preview_classifier(params.model, dataset, None, "cpu"), dataset)


def main() -> None:
    """Print a row per epsilon and attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--epsilons", default="1,2,4,8")
    options = parser.parse_args()
    os.environ["WINDTUNNEL_SHARED"] = str(Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")).resolve())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        subject = deployed(Path(folder), options.n)
        print(f"{int(subject.clean_correct.sum())} of {options.n} images are right.")
        print(
            "| epsilon | attack | broken | missed of Square's | queries | backward passes of the twin | processor s |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for level in map(int, options.epsilons.split(",")):
            epsilon, broken = level / 255, list[torch.Tensor]()
            attacks = {
                "PGD through the twin": ("PGD", {"steps": STEPS, "step_size": epsilon / 4}, {}),
                "APGD-CE through the twin": ("APGD", {"steps": STEPS}, {"loss": "ce"}),
                "Square": ("Square", {"steps": 12 * STEPS}, {}),
            }
            rows = list[tuple[str, float, float, float]]()
            for name, (algorithm, steps, params) in attacks.items():
                started = time.process_time()
                entry = AttackEntry(library="torchattacks", algorithm=algorithm, budget=steps, params=params)
                data = assess("it", entry, Budget(norm=Norm.LINF, epsilon=epsilon), subject).data
                broken.append(data["broken_by"] >= 0)
                ways = (float(data[f"{way}_passes"][data["attacked"]].mean()) for way in ("forward", "backward"))
                rows.append((name, *ways, time.process_time() - started))
            for (name, queries, backwards, seconds), by_attack in zip(rows, broken, strict=True):
                missed = int((broken[-1] & ~by_attack).sum())
                counts = f"{int(by_attack.sum())} | {missed} | {queries:.0f} | {backwards:.0f}"
                print(f"| {level}/255 | {name} | {counts} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
