"""What attacks through the float twin break of MLPerf Tiny's int8 ResNet-8, beside Square with ten times their queries.

    python -m benchmarks.twin [--n 100] [--epsilons 1,2,4,8] (of 255) [--quantised twin | both]

Needs ../shared and ai-edge-litert. A query is a sample that goes through the int8 file; the twin's backward passes are counted
apart. The files and the twin are those of examples/resnet8-int8. With --quantised the twin is the float network as onnxruntime
quantises it (QDQ, calibrated on the images), straight through its rounding; with `both`, it is the deployed file too.
Prints a row per epsilon and attack.
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

import numpy as np
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
from windtunnel.params.model import Model

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet8-int8"
STEPS = 10


def quantise(path: Path, inputs: torch.Tensor) -> None:
    """Write the float network as onnxruntime quantises it, calibrated on inputs (n, 3, 32, 32) in 0..255."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from resnet8 import ResNet8

    class Reader(CalibrationDataReader):
        rows = iter([{"x": inputs.numpy()}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    network = ResNet8().eval()
    network.load_state_dict(torch.load(path.with_name("twin.pt"), weights_only=True))
    plain = path.with_name("float.onnx")
    torch.onnx.export(network, (inputs[:2],), str(plain), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    quantize_static(str(plain), str(path), Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)


def deployed(folder: Path, n: int, quantised: str | None) -> Subject:
    """Return the int8 file with its twin, and the first n images; changes to a folder below `folder`."""
    shutil.copytree(EXAMPLE, folder / "it")
    subprocess.run([sys.executable, "prepare.py", "--samples", str(n)], cwd=folder / "it", check=True)
    os.chdir(folder / "it" / "int8")
    sys.path.insert(0, str(folder / "it"))
    params = validate(YAML(typ="safe", pure=True).load(Path("params.yaml").read_text()))
    dataset, _ = load_dataset(params.data, params.seed)
    model = params.model
    if quantised:
        quantise(folder / "it" / "int8.onnx", dataset.inputs * 255)
        twin = {"source": "onnx", "path": "../int8.onnx", "preprocess": {"range": (0, 255)}}
        keys = twin if quantised == "both" else {"source": "tflite", "path": "../int8.tflite"}
        head = {"head": {"output": "probability"}} if quantised == "twin" else {}
        model = Model.model_validate({**keys, **head, "twin": {**twin, "output": "logit"}})
    classifier = preview_classifier(model, dataset, None, "cpu")
    print(classifier.source, *(caveat.text for caveat in classifier.caveats if caveat.code == "twin"), sep="\n")
    return subject_of(classifier, dataset)


def main() -> None:
    """Print a row per epsilon and attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--epsilons", default="1,2,4,8")
    parser.add_argument("--quantised", choices=["twin", "both"])
    options = parser.parse_args()
    os.environ["WINDTUNNEL_SHARED"] = str(Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")).resolve())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        subject = deployed(Path(folder), options.n, options.quantised)
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
