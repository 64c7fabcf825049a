"""What the sanity checks cost on the last run, by tier, and how the cost grows with the samples.

    dvc repro && python -m benchmarks.sanity [--full]

Wanted: T0 in at most 15 s and T0 + T1 in at most 60 s on 2 cores for the default run, a cost that grows no faster
than the samples, and checks for masked gradients within a fifth of what the run's other stages took. Seconds of wall time, imports
left out; ratios are against the limits and against half of the samples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from windtunnel.assessments.clean.subject import current_subject
from windtunnel.boundary.params import load_params
from windtunnel.evaluation.sanity.evidence import Assessment, Evidence, collect
from windtunnel.evaluation.sanity.run import registry, run_checks
from windtunnel.records.artifacts import Artifacts, read_artifacts
from windtunnel.records.files import RUNTIME_FILE, read_json
from windtunnel.records.layout import CLEAN, REPORTS, ROBUSTNESS
from windtunnel.records.metadata import parse_metadata
from windtunnel.records.result import Tensors

LIMITS = {"stored": 15.0, "standard": 60.0}
MASKING = ("A22", "A23", "A24", "C8", "C13", "D15")  # of the default profile: those that attack, or ask around


def main() -> None:
    """Print a row per profile and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true", help="also the attacks rerun (T2)")
    options = parser.parse_args()
    params = load_params()
    whole = collect(
        params, current_subject(params.device, params.seed, params.model), read_artifacts(CLEAN), ROBUSTNESS
    )
    registry()
    seconds(whole, "standard")  # imports, and the first pass of everything
    n = len(whole.ids)
    print(f"{'profile':10} {'samples':>8} {'seconds':>8} {'of the limit':>13} {'against half':>13}")
    for profile in ("stored", "standard", *(["full"] if options.full else [])):
        half = seconds(first(whole, n // 2), profile)
        all_of_them = seconds(whole, profile)
        limit = f"{all_of_them / LIMITS[profile]:.2f}" if profile in LIMITS else "-"
        print(f"{profile:10} {n // 2:8} {half:8.2f}")
        print(f"{profile:10} {n:8} {all_of_them:8.2f} {limit:>13} {all_of_them / half:13.2f}")
    masking, run = seconds(whole, "standard", MASKING), own_time()
    print(f"masking checks: {masking:.2f} s, {masking / run:.0%} of the {run:.0f} s of the run's other stages")


def own_time() -> float:
    """Seconds that the stages of the last run took by their runtime.json, whenever each of them ran; sanity left out."""
    found = [*ROBUSTNESS.glob(f"*/{RUNTIME_FILE}"), *REPORTS.glob(f"runtime/*/{RUNTIME_FILE}")]
    return sum(cast(dict[str, float], read_json(path))["seconds"] for path in found)


def seconds(evidence: Evidence, profile: str, only: Sequence[str] | None = None) -> float:
    """Wall time of a profile's checks, or of those `only`; nothing is remembered from before."""
    started = time.perf_counter()
    settings = evidence.params.sanity.model_copy(update={"profile": profile})
    run_checks(replace(evidence, notes={}), settings, only)
    return time.perf_counter() - started


def first(evidence: Evidence, n: int) -> Evidence:
    """The same run on its first `n` samples."""
    assessments = []
    for assessment in evidence.assessments:
        kept = (assessment.indices < n).nonzero().flatten()
        total, names = len(assessment.indices), assessment.artifacts.sample_names
        data: Tensors = {
            key: cut(value, total, kept)
            if isinstance(value, torch.Tensor)
            else {k: cut(v, total, kept) for k, v in value.items()}
            for key, value in assessment.artifacts.data.items()
        }
        kwargs = {
            **assessment.artifacts.metadata.model_dump(mode="json")["kwargs"],
            "sample_names": [names[i] for i in kept.tolist()],
        }
        metadata = parse_metadata(
            {**assessment.artifacts.metadata.model_dump(mode="json"), "kwargs": kwargs}, assessment.name
        )
        assessments.append(
            Assessment(
                assessment.name,
                assessment.family,
                Artifacts(assessment.name, assessment.artifacts.directory, data, metadata),
                assessment.indices[kept],
            )
        )
    return replace(evidence, subject=evidence.subject.subset(torch.arange(n)), assessments=tuple(assessments), notes={})


def cut(tensor: torch.Tensor, total: int, kept: torch.Tensor) -> torch.Tensor:
    """The rows `kept` of the axis that counts the samples: the first, or the second of (E, N)."""
    if tensor.ndim and len(tensor) == total:
        return tensor[kept]
    return tensor[:, kept] if tensor.ndim > 1 and tensor.shape[1] == total else tensor


if __name__ == "__main__":
    main()
