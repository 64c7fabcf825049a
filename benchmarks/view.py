"""The sample browser on a large run: 100,000 samples x 4 assessments of 8 x 8 images, in headless Chromium.

    python -m benchmarks.view [--samples 100000] [--assessments 4]

Wanted: first view within 1 s of opening the page, a filter within 200 ms. Opened from disk, as a bundle is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.browser import chromium
from tests.made import content
from windtunnel.core.contracts import Verdict
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import write_json
from windtunnel.reporting.compare.runs import run_in
from windtunnel.reporting.view.site import site

_ASKED = (
    ("name", "find", "777"),
    ("class", "target", "3"),
    ("distance", "distance-low", "0.5"),
    ("confidence", "confidence-high", "50"),
    ("verdict", "verdict-attack_1", "1"),
    ("sort", "sort", "distance"),
    ("table", "show", "table"),
)
SHOWN = "return document.querySelectorAll('.cell').length > 0 && performance.now()"
FILTER = """
const done = arguments[arguments.length - 1], before = document.getElementById('count').textContent;
const [id, value] = arguments, input = document.getElementById(id), start = performance.now();
new MutationObserver((_, watch) => { watch.disconnect(); done(performance.now() - start); })
  .observe(document.getElementById('count'), {childList: true, characterData: true, subtree: true});
input.value = value; input.dispatchEvent(new Event('input', {bubbles: true}));
"""


def write_run(folder: Path, n: int, assessments: int) -> Path:
    """Random samples of ten classes, some broken by each attack, in the form of the contract; the folder."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(n, 1, 8, 8, generator=generator)
    targets = torch.randint(0, 10, (n,), generator=generator)
    clean = torch.where(torch.rand(n, generator=generator) < 0.05, (targets + 1) % 10, targets)
    names = [f"sample-{i:06d}" for i in range(n)]
    kwargs = {"sample_names": names, "class_names": [f"class {k}" for k in range(10)]}
    base = {"clean_inputs": images, "targets": targets, "clean_predictions": clean}
    worst = torch.zeros(n, dtype=torch.bool)
    for a in range(assessments):
        broken = (torch.rand(n, generator=generator) < 0.2) & (clean == targets)
        worst |= broken
        data = {
            **base,
            "verdicts": torch.where(broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED)),
            "perturbed_inputs": (images + 0.05 * torch.randn(images.shape, generator=generator)).clamp(0, 1),
            "perturbed_predictions": torch.where(broken, (targets + 3) % 10, clean),
            "perturbation_distance": torch.rand(n, generator=generator),
            "perturbed_logits": torch.randn(n, 10, generator=generator),
        }
        _write(folder / "robustness" / f"attack_{a}", data, kwargs, f"attack_{a}")
    verdicts = torch.where(worst, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))
    verified = torch.where(~worst & (targets < 3), int(Verdict.VERIFIED), int(Verdict.UNKNOWN))
    summary = {**base, "verdicts": verdicts, "certified_verdicts": verified}
    _write(folder / "summary", summary, {**kwargs, "assessments": [], "hard_failures": []}, "summary")
    return folder


def _write(directory: Path, data: dict[str, torch.Tensor], kwargs: dict[str, object], name: str) -> None:
    save_tensors(dict(data), directory / "robustness_data.pt")
    metadata = content(name=name, kwargs=kwargs, semantics={"perturbation": {"norm": "Linf", "epsilon": 8 / 255}})
    write_json(metadata, directory / "metadata.json")


def write_page(run: Path, folder: Path) -> Path:
    """The page as a bundle with its first sheets alone, which is all that a first view asks for; its address."""
    for name, make in site([run_in(run, "run")]).items():
        if not name.startswith("sheets/") or name in {"sheets/clean-0.png"}:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make())
    return folder / "index.html"


def measure(page: Path) -> dict[str, float]:
    """Milliseconds in headless Chromium: of the first view, and of filters by name, class, and distance of an assessment."""
    with chromium(1400, 900) as driver:
        driver.get(page.as_uri())
        found = {"first view": float(driver.execute_script(SHOWN))}
        driver.execute_async_script(FILTER, "source", "attack_0")  # its columns are read once
        for words, key, value in _ASKED:
            found[words] = float(driver.execute_async_script(FILTER, key, value))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--assessments", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", given.samples, given.assessments)
        start = time.perf_counter()
        page = write_page(run, Path(folder) / "page")
        print(
            f"page made in {time.perf_counter() - start:.1f} s, core {(page.parent / 'core.js').stat().st_size / 1e6:.1f} MB"
        )
        print(", ".join(f"{words} {value:.0f} ms" for words, value in measure(page).items()))


if __name__ == "__main__":
    main()
