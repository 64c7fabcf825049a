"""How to get these numbers again: the command, versions, seeds, digests, and what no seed can fix."""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.core.artifacts import Artifacts
from windtunnel.core.contracts import AssessmentKind
from windtunnel.reporting.report.collect import Found
from windtunnel.reporting.report.model import Block, Section, Table, Text
from windtunnel.reporting.report.words import block, number, semantics, short

_ORIGIN = ("seed", "device", "python", "threads_deterministic", "model_source", "dataset_digest", "model_digest")
_RANDOMNESS = {
    "deterministic": "none: equal whatever the seed",
    "global_rng": "a global stream, seeded per batch and put back",
    "self_seeded": "a seed of its own, passed by us",
}


def reproducibility_section(found: Found) -> Section:
    """The section `Reproducibility`."""
    return Section("Reproducibility", tuple(_blocks(found)))


def _blocks(found: Found) -> Iterator[Block]:
    yield Text("Everything here is computed again from params.yaml, dvc.yaml and the locked environment by")
    yield Text("dvc repro", code=True)
    yield Text("and this report alone, from the files of the assessments, by")
    yield Text("windtunnel report", code=True)
    everything = [a for a in (found.summary, found.clean, *found.assessments) if a]
    if not everything:
        return
    origin = block(everything[0].plain, "provenance")
    packages: dict[str, str] = {}
    for a in everything:
        packages |= {k: str(v) for k, v in block(block(a.plain, "provenance"), "packages").items()}
    rows = [(key.replace("_", " "), short(origin[key])) for key in _ORIGIN if key in origin]
    rows += [(name, version) for name, version in sorted(packages.items())]
    yield Table("Seed, digests and versions", ("what", "value"), tuple(rows))
    if found.assessments:
        yield Table("What comes out equal on a second run, and what does not", ("assessment", "randomness", "bit for bit"),
                    tuple((a.name, *_again(a, short(origin.get("device")))) for a in found.assessments))  # fmt: skip


def _again(artifacts: Artifacts, device: str) -> tuple[str, str]:
    randomness = str(semantics(artifacts).get("randomness", ""))
    words = _RANDOMNESS.get(randomness, randomness or "not recorded")
    exceptions = []
    if artifacts.plain["assessment_kind"] == AssessmentKind.FORMAL_VERIFICATION:
        exceptions.append("measured run times differ")
        timeouts = int(number(artifacts.metrics, "timeouts"))
        exceptions.append(
            f"{timeouts} samples ran out of time: a faster machine may decide them"
            if timeouts
            else "verdicts are equal, since none ran out of time"
        )
    if device != "cpu":
        exceptions.append(f"sums on {device} may be rounded in another order")
    return words, "; ".join(exceptions) if exceptions else "equal with this seed, on the same machine and versions"
