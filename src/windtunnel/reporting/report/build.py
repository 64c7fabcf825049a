"""From the artifacts on disk to a `ReportContent`. Works on any set of directories; what is missing is said."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from windtunnel.assessments.figures.pictures import pictures_as
from windtunnel.core.contracts import AssessmentKind
from windtunnel.params.results import Report
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.collect import ReportInputs, collect
from windtunnel.reporting.report.model import ODD_METADATA, Block, ReportContent, Section, Table, Text, guarded
from windtunnel.reporting.report.phrases import number, percent, short
from windtunnel.reporting.report.sections.assessment import (
    assessment_section,
    caveat_blocks,
    essential_blocks,
    what_ran,
)
from windtunnel.reporting.report.sections.compared import budgets_table
from windtunnel.reporting.report.sections.families import family_sections
from windtunnel.reporting.report.sections.front import front
from windtunnel.reporting.report.sections.samples import samples_appendix
from windtunnel.reporting.report.sections.sanity import SANITY, checks_appendix, gate_section, sanity_section
from windtunnel.reporting.sequential_gate import sequence_section


def build_report(
    reports: Path, options: Report | None = None, names: Iterable[str] | None = None, *, dated: bool = False
) -> ReportContent:
    """Return the report on the artifacts below `reports`, of the assessments `names` (all where absent; see `collect`).

    `dated`: with the date, the commit and the run times of the results, where runtime.json has them; without, equal artifacts
    give equal files.
    """
    options = options or Report()
    with pictures_as((options.pictures,)):
        return _build(reports, options, names, dated)


def _build(reports: Path, options: Report, names: Iterable[str] | None, dated: bool) -> ReportContent:
    inputs = collect(reports, names, named=options.show_sample_names, measured=dated)
    try:
        return _report(inputs, options)
    except ODD_METADATA as error:
        # Each part that shows one assessment is guarded; what is left is the summary.
        line = f"The summary is missing from this report: its metadata is of another version ({error!r})"
        return _report(replace(inputs, summary=None, problems=[*inputs.problems, line]), options)


def _report(inputs: ReportInputs, options: Report) -> ReportContent:
    return ReportContent(
        title=options.title,
        front=front(inputs),
        sections=tuple(_sections(inputs, options)),
        samples=samples_appendix(inputs),
        glossary=GLOSSARY,
        full=options.layout == "full",
        paper=options.paper,
    )


def _sections(inputs: ReportInputs, options: Report) -> Iterator[Section]:
    """Yield a section per question that a reader asks, in the order of asking."""
    clean, checks, gate = inputs.clean, inputs.checks, inputs.gate
    if clean is not None:
        yield guarded(CLEAN, lambda: clean_section(clean, inputs, options))
    yield from family_sections(inputs, options)
    if checks is not None:
        yield guarded(SANITY, lambda: sanity_section(checks, gate))
    elif gate is not None:
        yield guarded("The gate", lambda: gate_section(gate))
    if inputs.sequence is not None:
        yield guarded("The sequential gate", partial(sequence_section, inputs.sequence))
    yield reproducibility_section(inputs)
    if checks is not None:
        yield guarded("Every sanity check", lambda: checks_appendix(checks))


GLOSSARY: tuple[tuple[str, str], ...] = (
    (
        "adversarial accuracy",
        "share of all samples that are still classified as their label after an attack (Carlini et al. 2019)",
    ),
    ("attack success rate", "share of the correctly classified samples that an attack broke within the budget"),
    ("budget", "the perturbations that count: all within epsilon of the clean input under a norm, on [0, 1] pixels"),
    ("calibration error (ECE)", "mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017)"),
    (
        "certified accuracy",
        "share of samples that are correct and for which it is verified that no perturbation in the budget changes that",
    ),
    ("corruption", "an everyday disturbance of an image at severity 1 to 5 (Hendrycks and Dietterich 2019)"),
    ("critical epsilon", "the smallest budget at which a sample's prediction flips"),
    ("interval", "95 % confidence: Wilson's for rates, Clopper-Pearson's for certified claims"),
    (
        "latent-space metrics",
        "robustness to changes along the data manifold of a generative model: accuracy on generated (LGA) and reconstructed "
        "images (LRA), under latent noise (LLNA), the smallest class-changing change of a code (LLAR), its mean (LAGS, LARS), "
        "the share without one within a radius (LAGA, LARA) (Buzhinsky et al. 2021)",
    ),
    ("not broken", "no adversarial example is known; that none exists was not shown"),
    (
        "sandwich",
        "certified accuracy ≤ true robust accuracy ≤ worst-case accuracy, at one budget, over the attacked samples",
    ),
    (
        "worst-case accuracy",
        "share of samples that no assessment broke: the minimum per sample over all attacks, not their mean",
    ),
)


CLEAN = "How accurate is it on clean inputs?"


def clean_section(clean: Artifacts, inputs: ReportInputs, options: Report) -> Section:
    """Return the section of the clean evaluation."""
    metrics = clean.metrics
    cells = [("accuracy", percent(metrics, "clean_accuracy")), ("samples", str(len(clean.sample_names)))]
    for title, key, form in (
        ("negative log-likelihood", "nll", "{:.4f} nats"),
        ("expected calibration error", "ece", "{:.4f}"),
        ("adaptive ECE", "adaptive_ece", "{:.4f}"),
        ("Brier score", "brier", "{:.4f}"),
        ("mean confidence", "mean_confidence", "{:.1%}"),
        ("macro F1", "f1_macro", "{:.4f}"),
        ("AUROC", "auroc", "{:.4f}"),
    ):
        if key in metrics:
            cells.append((title, form.format(number(metrics, key))))
    header, row = zip(*cells, strict=True)
    table = Table("The model on its clean samples", header, (row,))
    explained = Text("Expected calibration error: the mean gap between confidence and accuracy; 0 is perfect.")
    blocks = (*caveat_blocks(clean), table, explained, *essential_blocks(clean, inputs))
    return Section(CLEAN, blocks, (guarded("clean", partial(assessment_section, clean, inputs, options)),))


REPRODUCE = "How can I reproduce them?"
_OF_DATA = ("source", "n", "shape", "class_names", "labelled", "value_range_of_source", "samples")
_OF_MODEL = tuple("source architecture factory function original input_shape num_classes recipe sha256".split())
_ORIGIN = ("seed", "device", "python", "threads_deterministic", "model_source", "dataset_digest", "model_digest")
_RANDOMNESS = {
    "deterministic": "deterministic: no seed",
    "global_rng": "global generator, seeded per batch and restored",
    "self_seeded": "own seed, passed in the call",
}


def reproducibility_section(inputs: ReportInputs) -> Section:
    """Explain how to reproduce the numbers: what was tested, the command, versions, seeds, digests, and what no seed can fix."""
    details = Section("What ran, and how it repeats", (_runs(inputs),), detail=True)
    return Section(REPRODUCE, tuple(_reproduction(inputs)), (details,))


def _reproduction(inputs: ReportInputs) -> Iterator[Block]:
    yield Text(
        "Everything here is computed from params.yaml, dvc.yaml and the locked environment by the first command, and this "
        "report alone, from the files of the assessments, by the second."
    )
    yield Text("dvc repro", code=True)
    yield Text("windtunnel report", code=True)
    rows = [
        (what, "; ".join(f"{key.replace('_', ' ')} {short(facts[key])}" for key in keys if key in facts))
        for what, record, keys in (("data", inputs.data, _OF_DATA), ("model", inputs.model, _OF_MODEL))
        if record and (facts := record.model_dump(mode="json"))
    ]
    all_artifacts = [a for a in (inputs.summary, inputs.clean, *inputs.assessments) if a]
    if all_artifacts:
        origin = all_artifacts[0].metadata.provenance.model_dump(mode="json")
        rows += [(key.replace("_", " "), short(origin[key])) for key in _ORIGIN if key in origin]
        packages: dict[str, str] = {}
        for a in all_artifacts:
            packages |= a.metadata.provenance.packages
        rows.append(("packages", ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))))
    yield Table("Data, model, seed, digests and versions", ("what", "value"), tuple(rows))
    if inputs.summary:
        yield budgets_table(inputs)
    yield Text("Intervals are at 95 %: Wilson's for rates, Clopper-Pearson's for certified claims.")


def _runs(inputs: ReportInputs) -> Table:
    device = inputs.summary.metadata.provenance.device if inputs.summary else "cpu"
    rows = tuple((a.name, what_ran(a), *_again(a, device)) for a in inputs.assessments)
    return Table("What ran", ("assessment", "how", "randomness", "a second run"), rows)


def _again(artifacts: Artifacts, device: str) -> tuple[str, str]:
    """(how an assessment draws at random, in what a second run differs)."""
    randomness = artifacts.metadata.semantics.randomness
    exceptions = []
    if artifacts.kind is AssessmentKind.FORMAL_VERIFICATION:
        exceptions.append("measured run times differ")
        timeouts = int(number(artifacts.metrics, "timeouts"))
        late = f"{timeouts} samples timed out: a faster machine may decide them"
        exceptions.append(late if timeouts else "verdicts are equal: no sample timed out")
    if device != "cpu":
        exceptions.append(f"sums on {device} may be rounded in another order")
    equal = "equal bit for bit with this seed, on the same machine and versions"
    return _RANDOMNESS.get(randomness, randomness or "not recorded"), "; ".join(exceptions) or equal
