"""Explain how to reproduce the numbers: what was tested, the command, versions, seeds, digests, and what no seed can fix."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.core.contracts import AssessmentKind
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Section, Table, Text
from windtunnel.reporting.report.phrases import number, short
from windtunnel.reporting.report.sections.assessment import what_ran
from windtunnel.reporting.report.sections.breaks import budgets_table

REPRODUCE = "How can I reproduce them?"
_OF_DATA = ("source", "n", "shape", "class_names", "labelled", "value_range_of_source", "samples")
_OF_MODEL = (
    "source",
    "architecture",
    "factory",
    "function",
    "original",
    "input_shape",
    "num_classes",
    "recipe",
    "sha256",
)
_ORIGIN = ("seed", "device", "python", "threads_deterministic", "model_source", "dataset_digest", "model_digest")
_RANDOMNESS = {
    "deterministic": "deterministic: no seed",
    "global_rng": "global generator, seeded per batch and restored",
    "self_seeded": "own seed, passed in the call",
}


def reproducibility_section(inputs: ReportInputs) -> Section:
    """Return the section of how the numbers came to be."""
    return Section(
        REPRODUCE, tuple(_blocks(inputs)), (Section("What ran, and how it repeats", tuple(_runs(inputs)), detail=True),)
    )


def _blocks(inputs: ReportInputs) -> Iterator[Block]:
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


def _runs(inputs: ReportInputs) -> Iterator[Block]:
    device = inputs.summary.metadata.provenance.device if inputs.summary else "cpu"
    yield Table(
        "What ran",
        ("assessment", "how", "randomness", "a second run"),
        tuple((a.name, what_ran(a), *_again(a, device)) for a in inputs.assessments),
    )


def _again(artifacts: Artifacts, device: str) -> tuple[str, str]:
    randomness = artifacts.metadata.semantics.randomness
    text = _RANDOMNESS.get(randomness, randomness or "not recorded")
    exceptions = []
    if artifacts.kind is AssessmentKind.FORMAL_VERIFICATION:
        exceptions.append("measured run times differ")
        timeouts = int(number(artifacts.metrics, "timeouts"))
        exceptions.append(
            f"{timeouts} samples timed out: a faster machine may decide them"
            if timeouts
            else "verdicts are equal: no sample timed out"
        )
    if device != "cpu":
        exceptions.append(f"sums on {device} may be rounded in another order")
    return text, "; ".join(
        exceptions
    ) if exceptions else "equal bit for bit with this seed, on the same machine and versions"
