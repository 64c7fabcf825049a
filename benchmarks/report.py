"""The report of a large run: 5,000 samples x 12 assessments of 32 x 32 colour images.

    python -m benchmarks.report [--samples 5000] [--assessments 12] [--keep FOLDER]

Wanted: PDF and HTML in at most 60 s and 2 GiB, HTML of at most 20 MB. The artifacts are random, in the form of the
contract; the report is built in a process of its own, whose peak of resident memory is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from windtunnel.assessments.clean.assess import assess_clean
from windtunnel.core.classifier import Classifier, module_digest
from windtunnel.core.contracts import Capability, Norm, PerturbationBudget, Semantics, Verdict
from windtunnel.core.dataset import Dataset
from windtunnel.core.statistics import binomial_rate
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.summary.summarise import SUMMARY, summarise
from windtunnel.params.results import Clean
from windtunnel.records.artifacts import base_data, base_kwargs, write_artifacts
from windtunnel.records.result import AssessmentResult

BUDGET = PerturbationBudget(Norm.LINF, 8 / 255)

MEASURED = """
import resource, sys, time
from pathlib import Path
from windtunnel.reporting.report.build import build_report
from windtunnel.reporting.report.html import render_html
from windtunnel.reporting.report.pdf import render_pdf
folder, start = Path(sys.argv[1]), time.perf_counter()
report = build_report(folder)
built = time.perf_counter()
render_html(report, folder / "report.html")
html = time.perf_counter()
render_pdf(report, folder / "report.pdf")
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"seconds: read {built - start:.1f}, html {html - built:.1f}, pdf {end - html:.1f}, all {end - start:.1f}; peak {peak:.2f} GiB")
"""


def subject(n: int, size: int) -> Subject:
    """`n` random colour images and an untrained linear model that is right on nine of ten."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(n, 3, size, size, generator=generator)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, 10)).eval()
    classifier = Classifier(module, 10, (3, size, size), frozenset(Capability), module_digest(module), "random")
    with torch.no_grad():
        targets = classifier.logits(images).argmax(1)
    targets[::10] = (targets[::10] + 1) % 10
    names = tuple(f"image-{i:05d}" for i in range(n))
    return subject_of(classifier, Dataset(images, targets, names, tuple(f"class {k}" for k in range(10))))


def random_attack(name: str, it: Subject, seed: int) -> AssessmentResult:
    """An attack that, by lot, breaks a third of what is right."""
    generator = torch.Generator().manual_seed(seed)
    inputs = it.dataset.inputs
    noise = (torch.rand(inputs.shape, generator=generator) - 0.5) * 2 * 8 / 255
    perturbed = (inputs + noise).clamp(0, 1)
    broken = (torch.rand(len(inputs), generator=generator) < 1 / 3) & it.clean_correct
    targets = it.dataset.targets
    verdicts = torch.where(broken, int(Verdict.ATTACK_SUCCEEDED), int(Verdict.ATTACK_FAILED))
    data = {
        **base_data(it, verdicts),
        "perturbed_inputs": perturbed,
        "perturbed_predictions": torch.where(broken, (targets + 1) % 10, it.clean_predictions),
        "perturbation_distance": (perturbed - inputs).abs().flatten(1).amax(1),
    }
    right, n = int(it.clean_correct.sum()), len(inputs)
    metrics = {
        **binomial_rate(right, n).metrics("clean_accuracy"),
        **binomial_rate(right - int(broken.sum()), n).metrics("adversarial_accuracy"),
        **binomial_rate(int(broken.sum()), right).metrics("attack_success_rate"),
    }
    return AssessmentResult(name, Semantics(SUMMARY, BUDGET), data, metrics, kwargs=base_kwargs(it))


def write_run(folder: Path, n: int, assessments: int, size: int = 32) -> None:
    """Clean evaluation, random attacks and their summary, below `folder`."""
    it = subject(n, size)
    robustness = folder / "robustness"
    clean = write_artifacts(assess_clean(Clean(), it), robustness / "clean", it, started=0)
    attacks = []
    for i in range(assessments):
        name = f"attack_{i:02d}"
        attacks.append(write_artifacts(random_attack(name, it, i), robustness / name, it, started=0))
    write_artifacts(summarise(it, BUDGET, clean, attacks), folder / "summary", it, started=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--assessments", type=int, default=12)
    parser.add_argument("--keep", type=Path, help="write the artifacts and the report here, and leave them")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        write_run(folder, given.samples, given.assessments)
        subprocess.run([sys.executable, "-c", MEASURED, str(folder)], check=True)
        for name in ("report.html", "report.pdf"):
            print(f"{name}: {(folder / name).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
