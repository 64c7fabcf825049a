"""Attacks through raitap's own assessors, in its environment: what benchmarks/attacks.py compares with.

    python -m benchmarks.raitap_attacks FOLDER raitap_peer.py EPSILON

FOLDER holds `model.pt` (a pickled module), `data.npz` (`x` float32 (N, C, H, W), `y` int64 (N,)) and `attacks.json`, rows of
[library, algorithm, parameters]. Each attack runs on every sample, as it does there. Prints a line of
JSON: the seconds of each `assess` and the share of samples that every attack left right.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch


def main(folder: Path, script: str, epsilon: float) -> None:
    from raitap.robustness.assessors.foolbox_assessor import FoolboxAssessor
    from raitap.robustness.assessors.torchattacks_assessor import TorchattacksAssessor

    spec = importlib.util.spec_from_file_location("raitap_peer", script)
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    model = torch.load(folder / "model.pt", weights_only=False).eval()
    data = np.load(folder / "data.npz")
    inputs, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    standing, seconds = torch.ones(len(labels), dtype=torch.bool), []
    for library, algorithm, params in json.loads((folder / "attacks.json").read_text()):
        torch.manual_seed(0)
        if library == "foolbox":
            assessor, at_call = FoolboxAssessor(algorithm=algorithm, **params), {"eps": epsilon}
        else:
            assessor, at_call = TorchattacksAssessor(algorithm=algorithm, eps=epsilon, **params), {}
        start = time.perf_counter()
        result = assessor.assess(
            model, inputs, labels, backend=peer.backend(model), run_dir=tempfile.mkdtemp(), **at_call
        )
        seconds.append(time.perf_counter() - start)
        standing &= result.perturbed_predictions == labels
    print(json.dumps({"seconds": seconds, "worst_case": float(standing.double().mean())}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
