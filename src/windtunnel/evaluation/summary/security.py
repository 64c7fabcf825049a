"""Security curves: accuracy against epsilon, of every assessment that knows one, attacked and certified alike."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from windtunnel.core.contracts import AssessmentKind, Norm
from windtunnel.core.statistics import binomial_rate
from windtunnel.evaluation.summary.evidence import examples_of
from windtunnel.records.artifacts import Artifacts
from windtunnel.records.files import read_json, write_json
from windtunnel.records.metadata import fitting, number, numbers
from windtunnel.records.regions import PerturbationBall, of_a_smoothed_model, region_of


@dataclass(frozen=True, slots=True)
class SecurityCurve:
    """Accuracy that is left at each epsilon (certified: verified), with its interval; one epsilon is a point.

    samples: how many it is of. reach: the largest epsilon that was asked about. steps: whether the curve is constant
    between its epsilons (distances per sample) and not merely unknown there. out_of_time: samples for which a verifier's
    time ran out, so that the curve is what was verified so far.
    """

    name: str
    norm: Norm
    certified: bool
    epsilons: list[float]
    accuracy: list[float]
    low: list[float]
    high: list[float]
    samples: int
    reach: float
    steps: bool = False
    smoothed: bool = False
    out_of_time: int = 0


CURVES_FILE = "security_curves.json"


@dataclass(frozen=True, slots=True)
class _Curves:
    curves: tuple[SecurityCurve, ...]


def write_curves(curves: Sequence[SecurityCurve], directory: Path) -> None:
    """Write the curves of a run beside its summary: they need the tensors of every assessment, and whoever draws them does not."""
    write_json({"curves": [asdict(curve) for curve in curves]}, directory / CURVES_FILE)


def read_curves(directory: Path) -> tuple[SecurityCurve, ...]:
    """Return the curves beside the summary in `directory`. Raises UserError, in one line, where they are missing or damaged."""
    path = directory / CURVES_FILE
    return fitting(_Curves, read_json(path), str(path), "the security curves of a run").curves


def security_curves(assessments: Sequence[Artifacts]) -> list[SecurityCurve]:
    """Return a curve of each sweep, minimum-norm attack and certified radius, a point of each other attack and verification."""
    return [curve for artifacts in assessments for curve in _curves(artifacts)]


def _curves(artifacts: Artifacts) -> Iterator[SecurityCurve]:
    region, metrics, kind = region_of(artifacts), artifacts.metrics, artifacts.kind
    if region is None or kind == AssessmentKind.STATISTICAL_SAMPLING:
        return
    if kind == AssessmentKind.FORMAL_VERIFICATION:
        if "certified_curve" in metrics:
            yield _stored(artifacts, region, "curve_epsilons", "certified_curve", certified=True)
        elif "certified_accuracy" in metrics:
            yield _point(artifacts, region, "certified_accuracy", certified=True)
    elif "accuracy_curve" in metrics:
        yield _stored(artifacts, region, "epsilons", "accuracy_curve", certified=False)
    elif artifacts.metadata.semantics.minimum_norm:
        yield _of_distances(artifacts, region)
    elif "adversarial_accuracy" in metrics:
        yield _point(artifacts, region, "adversarial_accuracy", certified=False)


def _stored(
    artifacts: Artifacts, region: PerturbationBall, epsilons: str, accuracy: str, *, certified: bool
) -> SecurityCurve:
    low, high = f"{accuracy}_ci_low", f"{accuracy}_ci_high"
    x, y, bottom, top = (numbers(artifacts.metrics, key) for key in (epsilons, accuracy, low, high))
    curve, smoothed = (x, y, bottom, top, _count(artifacts), x[-1]), of_a_smoothed_model(artifacts)
    out_of_time = _out_of_time(artifacts)
    return SecurityCurve(artifacts.name, region.norm, certified, *curve, smoothed=smoothed, out_of_time=out_of_time)


def _point(artifacts: Artifacts, region: PerturbationBall, key: str, *, certified: bool) -> SecurityCurve:
    value, low, high = (number(artifacts.metrics, f"{key}{end}") for end in ("", "_ci_low", "_ci_high"))
    point = ([region.epsilon], [value], [low], [high], _count(artifacts), region.epsilon)
    return SecurityCurve(artifacts.name, region.norm, certified, *point, out_of_time=_out_of_time(artifacts))


def _of_distances(artifacts: Artifacts, region: PerturbationBall) -> SecurityCurve:
    """Derive the whole curve from one minimum-norm attack: a sample is robust at every epsilon below its distance."""
    distances = torch.where(examples_of(artifacts), artifacts.tensor("perturbation_distance"), torch.inf)
    wrong = artifacts.tensor("clean_predictions") != artifacts.tensor("targets")
    distances = distances.masked_fill(wrong, 0.0)
    epsilons = torch.cat([torch.zeros(1), distances[distances.isfinite()]]).unique()
    rates = [binomial_rate(int((distances > epsilon).sum()), len(distances)) for epsilon in epsilons]
    value, low, high = ([getattr(rate, key) for rate in rates] for key in ("value", "low", "high"))
    curve = (epsilons.tolist(), value, low, high, len(distances), region.epsilon)
    return SecurityCurve(artifacts.name, region.norm, False, *curve, steps=True)


def _out_of_time(artifacts: Artifacts) -> int:
    return int(number(artifacts.metrics, "timeouts")) if "timeouts" in artifacts.metrics else 0


def _count(artifacts: Artifacts) -> int:
    return len(artifacts.tensor("targets"))
