"""The largest epsilon at which each sample is verified, the smallest at which it is broken, and the curves of both."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from windtunnel.core.contracts import Json
from windtunnel.core.statistics import binomial_interval, median

CURVE_POINTS = 41
# Of what is open, that is tried next. Where failing costs three times as much, 0.3 learns most for its cost: (1 + 2 p) / H(p) is least.
_SHARE = 1 / 3
# Whether each of `indices` (int64, n) is verified, or broken, at its own epsilon (n,): (n,) bool.
Decide = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class RadiusBounds:
    """Bounds of the radius of each of N samples; every step tightens them.

    holds: float32 (N,), the largest epsilon at which it was verified. broken: float32 (N,), the distance of the nearest counter-example,
    inf for none. A certificate is one of every smaller ball, and a counter-example lies in every larger one: nobody is asked about those.
    """

    holds: Tensor
    broken: Tensor

    def unsettled(self, largest: float, tolerance: float) -> Tensor:
        """Which samples' radii, up to `largest`, are not known to within `tolerance`; (N,) bool."""
        return (self.holds < largest) & (self.broken - self.holds > tolerance)

    def certified_by(self, verified: Decide) -> Decide:
        """Return whether each sample is certified at its epsilon; call `verified` where that is unknown."""

        def decide(indices: Tensor, epsilons: Tensor) -> Tensor:
            is_certified = self._asked(verified, epsilons <= self.holds[indices], indices, epsilons)
            self.holds[indices[is_certified]] = torch.maximum(self.holds[indices], epsilons)[is_certified]
            return is_certified

        return decide

    def _asked(self, question: Decide, answer: Tensor, indices: Tensor, epsilons: Tensor) -> Tensor:
        """Return the known `answer`, with that of `question` where epsilon is between what holds and what is broken."""
        open_ = (self.holds[indices] < epsilons) & (epsilons < self.broken[indices])
        if open_.any():
            answer[open_] = question(indices[open_], epsilons[open_])
        return answer

    def broken_by(self, breaks: Decide) -> Decide:
        """Return whether each sample is broken at its epsilon; call `breaks` where that is unknown."""

        def decide(indices: Tensor, epsilons: Tensor) -> Tensor:
            broken = self._asked(breaks, epsilons >= self.broken[indices], indices, epsilons)
            self.broken[indices[broken]] = torch.minimum(self.broken[indices], epsilons)[broken]
            return broken

        return decide


def certified_radius(verified: Decide, low: Tensor, largest: float, tolerance: float) -> Tensor:
    """Return the largest epsilon in [low, largest] at which `verified` holds, to within `tolerance`; float32 (N,).

    low: (N,), an epsilon at which each sample is verified already, 0 where none is; negative leaves the sample out, at
    radius 0. All samples are bisected together, each at its own epsilon. What is returned was verified itself, so it is
    sound even where `verified` is not monotone; it never exceeds `largest`, which censors it.
    """
    return _bisect(verified, low, torch.full_like(low, largest), tolerance)[0]


def broken_radius(broken: Decide, high: Tensor, low: Tensor, tolerance: float) -> Tensor:
    """Return the smallest epsilon in [low, high] at which `broken` holds, to within `tolerance`; float32 (N,), inf for none.

    high: (N,), the largest epsilon to try. low: (N,), an epsilon at which each sample is known to hold; negative leaves
    the sample out, at 0: it is broken without any perturbation.
    """
    largest = _bisect(lambda indices, epsilons: ~broken(indices, epsilons), low, high, tolerance)[1]
    return torch.where(low < 0, 0.0, largest)


def raise_radius(verified: Decide, radii: RadiusBounds, largest: float, tolerance: float) -> None:
    """Raise the lower ends of `radii` up to `largest`, to at most the tolerance below what `verified` allows.

    Upwards from what holds, by the tolerance and then by twice as much each time, but never beyond a third of what is open: for a
    `verified` that takes longest where it fails, and whose time may end.
    """
    decide, failing = radii.certified_by(verified), radii.broken.clone()
    step = torch.full_like(failing, tolerance)
    while len(open_ := ((radii.holds < largest) & (failing - radii.holds > tolerance)).nonzero().flatten()):
        holding = radii.holds[open_]
        probes = (holding + step[open_].minimum(_SHARE * (failing[open_] - holding))).clamp(max=largest)
        good = decide(open_, probes)
        failing[open_[~good]] = probes[~good]
        failing = failing.minimum(radii.broken)  # an example may lie nearer than what was tried
        step[open_[good]] *= 2


def _bisect(holds: Decide, low: Tensor, high: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(largest epsilon that was seen to hold, smallest that was seen not to hold or inf), both float32 (N,)."""
    holding, failing = low.clamp(min=0).float(), torch.full_like(low, torch.inf, dtype=torch.float32)
    open_ = ((low >= 0) & (holding < high)).nonzero().flatten()
    probes = high.float().clone()  # first the largest: where that holds, the search is over
    while len(open_):
        good = holds(open_, probes[open_])
        holding[open_[good]] = probes[open_[good]]
        failing[open_[~good]] = probes[open_[~good]]
        open_ = open_[(failing[open_] - holding[open_] > tolerance) & (holding[open_] < high[open_])]
        probes[open_] = (holding[open_] + failing[open_]) / 2
    return holding, failing


def accuracy_curve(radii: Tensor, correct: Tensor, epsilons: Tensor) -> Tensor:
    """Accuracy against epsilon from radii: the share of samples that are `correct` and whose radius reaches epsilon.

    radii (N,), correct (N,) bool, epsilons (E,); float64 (E,), never rising along ascending epsilons. Of certified radii
    this is the certified accuracy (Cohen et al. 2019); an abstention counts as not correct.
    """
    return (correct & (radii >= epsilons.to(radii)[:, None])).double().mean(1)


def empirical_curve(broken: Tensor, epsilons: Tensor) -> Tensor:
    """Accuracy left against epsilon by examples at the distances `broken` (N,), inf for none, 0 for misclassified."""
    return (broken > epsilons.to(broken)[:, None]).double().mean(1)


def curve_metrics(
    radii: Tensor, correct: Tensor, largest: float, broken: Tensor | None = None, *, finished: bool = True
) -> dict[str, Json]:
    """Return the curves as plain lists over `CURVE_POINTS` epsilons from 0 to `largest`, and the mean certified radius.

    `average_certified_radius` counts a sample that is not correct as 0 (ACR, Zhai et al. 2020, arXiv 2001.02378). Where the
    search was not `finished` it is called `average_certified_radius_at_least`, and the median likewise: a time-out must
    not look like a finding wherever two numbers of one name are compared.
    """
    epsilons = torch.linspace(0, largest, CURVE_POINTS)
    certified, n = accuracy_curve(radii, correct, epsilons), len(radii)
    ends = [binomial_interval(round(share * n), n, method="clopper_pearson") for share in certified.tolist()]
    bound = "" if finished else "_at_least"
    metrics: dict[str, Json] = {
        "curve_epsilons": [float(f"{epsilon:.9g}") for epsilon in epsilons.tolist()],
        "certified_curve": certified.tolist(),
        "certified_curve_ci_low": [low for low, _ in ends],
        "certified_curve_ci_high": [high for _, high in ends],
        f"average_certified_radius{bound}": float((radii.double() * correct).mean()) if n else 0.0,
        f"median_certified_radius{bound}": median(radii.tolist()) or 0.0,
    }
    if broken is not None:
        metrics["empirical_curve"] = empirical_curve(broken, epsilons).tolist()
    return metrics
