"""Corruptions: a suite against the closest peer's loop, and glass_blur against the library's. Ratios of one run.

    python -m benchmarks.corruptions [--n 200] [--sides 32 224] [--workers 2]
                                     [--peer-python PYTHON --peer-script raitap_peer.py]

The peer's loop is imagecorruptions as it is, image by image in one process, on the corruptions that it can run on current
numpy and scikit-image (severities 1, 3, 5); with --peer-python, an environment that has raitap, it is the peer itself. Ours is
the whole `assess_suite` on the same pairs: predictions, checkpoints and metrics included. Every measurement is a process of
its own, so that peak memory is its own too (the peer's is not measured: nan).
Wanted: 1.8 times on 2 cores, 10 times on glass_blur at 224 px.
The full size takes about 10 minutes; `--n 40` is scaled down to a fifth, and the peer's fixed costs weigh less than ours there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import numpy as np
from PIL import Image

SEVERITIES = (1, 3, 5)


def pictures(n: int, side: int) -> np.ndarray:
    """The real photographs in foolbox's package, uint8 (n, side, side, 3), over and over."""
    spec = find_spec("foolbox")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "data").glob("imagenet_*"))
    photos = [np.asarray(Image.open(f).convert("RGB").resize((side, side))) for f in files]
    return np.stack([photos[i % len(photos)] for i in range(n)])


def library_loop(n: int, side: int, names: list[str]) -> dict[str, object]:
    """The library as it is, image by image; the corruptions in which it crashes are named and not timed.

    pkg_resources alone is given back, without which it cannot even be imported.
    """
    spec = find_spec("imagecorruptions")
    assert spec is not None
    assert spec.origin is not None
    folder, module = Path(spec.origin).parent, types.ModuleType("pkg_resources")
    vars(module)["resource_filename"] = lambda _, name: str(folder / name)
    sys.modules.setdefault("pkg_resources", module)
    warnings.simplefilter("ignore")
    from imagecorruptions import corrupt

    images, times, failed = pictures(n, side), {}, []
    for name in names:
        start = time.perf_counter()
        try:
            for severity in SEVERITIES:
                np.stack([corrupt(image, severity, name) for image in images]).astype(np.float32)
            times[name] = time.perf_counter() - start
        except Exception:  # which ones crash is what we want to know
            failed.append(name)
    return {"seconds": sum(times.values()), "by_name": times, "failed": failed}


def suite(n: int, side: int, names: list[str], workers: int | None) -> dict[str, object]:
    """Our suite with a linear model, as the peer's script has it; workers: None for as many as a run would start."""
    import torch
    from torch import nn

    from windtunnel.assessments.corruptions.assess import assess_suite
    from windtunnel.core.classifier import Classifier, module_digest
    from windtunnel.core.contracts import Capability
    from windtunnel.core.dataset import Dataset
    from windtunnel.core.subject import subject_of
    from windtunnel.params.corruptions import CorruptionEntry
    from windtunnel.runtime import batch_runner
    from windtunnel.runtime.placement import VARIABLE

    torch.set_num_threads(1)
    inputs = torch.from_numpy(pictures(n, side)).permute(0, 3, 1, 2).contiguous().float() / 255
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 10)).eval()
    model = Classifier(module, 10, tuple(inputs.shape[1:]), frozenset(Capability), module_digest(module), "linear")
    classes = tuple(map(str, range(10)))
    data = Dataset(inputs, torch.arange(n) % 10, tuple(map(str, range(n))), classes)
    entry = CorruptionEntry(corruptions=tuple(names), severities=SEVERITIES)
    if workers is not None:
        os.environ[VARIABLE] = f"processes:{workers}" if workers > 1 else "here"
    subject = subject_of(model, data)
    with tempfile.TemporaryDirectory() as folder:
        batch_runner.CHECKPOINTS = Path(folder)
        peaks: dict[int, float] = {}
        Thread(target=watch_workers, args=(peaks,), daemon=True).start()
        start = time.perf_counter()
        assess_suite("benchmark", entry, subject, lambda _: None)
        return {"seconds": time.perf_counter() - start, "peak_workers_mib": sum(peaks.values())}


def watch_workers(peaks: dict[int, float]) -> None:
    """Keep the largest resident size of each worker process in MiB (getrusage gives a child its parent's)."""
    while True:
        for child in multiprocessing.active_children():
            with suppress(OSError, IndexError):
                status = Path(f"/proc/{child.pid}/status").read_text()
                peaks[child.pid or 0] = int(status.split("VmHWM:")[1].split()[0]) / 1024
        time.sleep(0.05)


def glass(n: int, side: int) -> dict[str, object]:
    """glass_blur in one process: the library's (fixed, for it crashes as it is) and ours, alternating."""
    from windtunnel.assessments.corruptions.corrupt import corrupt_image, shim_imagecorruptions

    shim_imagecorruptions()
    warnings.simplefilter("ignore")
    import imagecorruptions

    def timed(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    theirs = ours = 0.0
    for image in pictures(max(1, n // 10), side):
        for severity in SEVERITIES:
            theirs += timed(lambda i=image, s=severity: imagecorruptions.corrupt(i, s, "glass_blur"))
            ours += timed(lambda i=image, s=severity: corrupt_image(i, "glass_blur", s, 0))
    return {"library": theirs, "ours": ours}


def measured(
    what: str, options: argparse.Namespace, side: int, names: list[str], workers: int = 1
) -> dict[str, object]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--n", str(options.n), "--sides", str(side), "--workers", str(workers)]
    command += ["--run", what, "--names", *names]
    found: dict[str, object] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    return found


def peer(options: argparse.Namespace, side: int, names: list[str]) -> dict[str, object]:
    """The peer itself, by its script, in its environment."""
    images = pictures(options.n, side)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, x=images.transpose(0, 3, 1, 2).astype(np.float32) / 255, y=np.arange(len(images)) % 10)
        command = [options.peer_python, options.peer_script, "corrupt", "--data", str(data), "--names", ",".join(names)]
        command += ["--severities", ",".join(map(str, SEVERITIES))]
        found: dict[str, object] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    return found


def main() -> None:
    from windtunnel.assessments.corruptions.rows import ALL

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="images")
    parser.add_argument("--sides", type=int, nargs="+", default=[32, 224])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-script")
    parser.add_argument("--run", choices=["library", "suite", "glass"], help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=list(ALL), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        side, names = options.sides[0], options.names
        if options.run == "glass":
            found = glass(options.n, side)
        else:
            found = library_loop(options.n, side, names) if options.run == "library" else suite(
                options.n, side, names, options.workers
            )  # fmt: skip
        print(json.dumps({**found, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    for side in options.sides:
        library = measured("library", options, side, list(ALL))
        failed = library["failed"]
        assert isinstance(failed, list)
        runs = [name for name in ALL if name not in failed]
        theirs = library
        if options.peer_python:
            theirs = {**peer(options, side, runs), "peak_mib": float("nan")}
        print(
            f"{side} px, {options.n} images x {len(SEVERITIES)} severities; as it is the library crashes in {', '.join(failed)}"
        )
        print(f"  {'peer' if options.peer_python else 'its loop'}, {len(runs)} corruptions  {theirs['seconds']:8.1f} s  "
              f"peak {theirs['peak_mib']:6.0f} MiB")  # fmt: skip
        for workers in dict.fromkeys((1, options.workers)):
            for names in (runs, list(ALL)):
                ours = measured("suite", options, side, names, workers)
                ratio = (
                    f"  {float(str(theirs['seconds'])) / float(str(ours['seconds'])):5.2f} times"
                    if names is runs
                    else ""
                )
                print(f"  ours, {len(names)} corruptions, {workers} processes  {ours['seconds']:8.1f} s  "
                      f"peak {ours['peak_mib']:6.0f} MiB, workers {ours['peak_workers_mib']:5.0f} MiB{ratio}")  # fmt: skip
        blur = measured("glass", options, side, [])
        print(
            f"  glass_blur, one process: {float(str(blur['library'])) / float(str(blur['ours'])):.1f} times the library's"
        )


if __name__ == "__main__":
    main()
