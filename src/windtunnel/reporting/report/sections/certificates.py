"""Compare the verifications: verdicts per method, and how far from each sample certificates and examples reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from windtunnel.assessments.figures.plots import Stack, ranks, stacks
from windtunnel.core.statistics import median
from windtunnel.records.artifacts import Artifacts
from windtunnel.reporting.report.collect import ReportInputs
from windtunnel.reporting.report.model import Block, Chart
from windtunnel.reporting.report.phrases import number, region, region_words

_KEY = (("certified", "verified"), ("broken", "falsified"), ("unknown", "unknown"), ("error", "error"))


def certificate_blocks(mine: Sequence[Artifacts], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the charts that compare the verifiers of a run."""
    rated = [a for a in mine if all(f"{verdict}_rate" in a.metrics for _, verdict in _KEY)]
    if rated:
        rows = []
        for a in rated:
            rates = tuple(number(a.metrics, f"{verdict}_rate") for _, verdict in _KEY)
            rows.append(Stack(f"{a.name}, {region_words(a)}", rates, f" of {len(a.sample_names)} samples"))
        alt = "; ".join(f"{row.label}: verified {row.shares[0]:.1%}, unknown {row.shares[2]:.1%}" for row in rows)
        yield Chart(stacks(rows, _KEY, "share of its samples", alt), "Verdicts of each method")
    for a in mine:
        if chart := _reach(a):
            yield chart


def _reach(a: Artifacts) -> Chart | None:
    """Sorted over the samples: the largest epsilon verified, and the smallest at which an example is known."""
    verified, broken = a.data.get("certified_radius"), a.data.get("broken_radius")
    if not isinstance(verified, Tensor):
        return None
    top = float(verified.max())
    curves = [("certified", "verified up to", verified.tolist())]
    if isinstance(broken, Tensor):
        distances = broken[broken.isfinite()]
        top = max(top, float(distances.max()) if len(distances) else 0.0)
        curves.append(("broken", "broken from", broken.clamp(max=top).tolist()))
    where = region(a)
    epsilon = where.epsilon or 0.0
    line = (epsilon, "budget") if 0 < epsilon <= top else None
    alt = f"Certified radius of {len(verified)} samples, sorted: median {median(verified.tolist()) or 0:.3g}."
    scene = ranks(curves, f"epsilon ({where.norm})", alt, top or 1.0, horizontal=line)
    return Chart(scene, f"{a.name}: certified radii and distances of adversarial examples, over the samples")
