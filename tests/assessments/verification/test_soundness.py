"""No certificate is broken, and no bound undercut, on random networks: a search in float64 looks for a contradiction.

More of them: `WINDTUNNEL_SOUNDNESS_NETWORKS=200 pytest -m slow tests/assessments/verification/test_soundness.py`, and
`WINDTUNNEL_SOUNDNESS_FIRST=1000` for others.
"""

import os

import pytest
import torch
from balls import budget, entry, subject_with
from random_networks import least_margins, random_inputs, random_network

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.search import Limits
from windtunnel.assessments.verification.branch_and_bound.session import decide
from windtunnel.assessments.verification.canonical.subject import canonical_subject
from windtunnel.assessments.verification.regions import BallRegions
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.errors import IncompatibleError

NETWORKS = int(os.environ.get("WINDTUNNEL_SOUNDNESS_NETWORKS", "5"))
SEEDS = range(first := int(os.environ.get("WINDTUNNEL_SOUNDNESS_FIRST", "0")), first + NETWORKS)
CPU = torch.device("cpu")
LIMITS = Limits(domains=16, iterations=6, batch=16, memory=10**8, rows=256)
LARGEST = {Norm.LINF: 0.5, Norm.L2: 2.0, Norm.L1: 4.0}
METHODS = {
    Norm.LINF: ("crown", "alpha-crown", "ibp", "crown-ibp", "forward+backward"),
    Norm.L2: ("crown-l2", "alpha-crown-l2"),
    Norm.L1: ("crown-l1", "alpha-crown-l1"),
}


class Case:
    """A random network, inputs, a norm, and epsilons at which some sample is nearly broken or just broken."""

    def __init__(self, seed: int, samples: int) -> None:
        module, shape, classes = random_network(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.subject = subject_with(module, random_inputs(samples, shape, self.generator), classes)
        self.exact = random_network(seed)[0].double()
        self.norm = [*LARGEST, Norm.LINF][seed % 4]
        low, high = 0.0, LARGEST[self.norm]
        for _ in range(6):
            middle = (low + high) / 2
            low, high = (low, middle) if bool((self.least(middle, 1) < 0).any()) else (middle, high)
        self.near = high
        size = self.exact(self.subject.dataset.inputs.double())
        self.rounding = 1e-5 * float(size.amax() - size.amin())

    def least(self, epsilon: float | torch.Tensor, first: int | None = None) -> torch.Tensor:
        """(n, K - 1) margins that the search meets, other classes in their order."""
        data = self.subject.dataset
        epsilons = torch.as_tensor(epsilon).expand(len(data))
        rows = []
        for x, y, e in list(zip(data.inputs, data.targets.tolist(), epsilons.tolist(), strict=True))[:first]:
            found = least_margins(self.exact, x, y, self.norm, e, self.generator)
            rows.append(found[found != torch.inf])
        return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_point_of_a_region_lies_below_the_bounds_of_branch_and_bound(seed):
    case = Case(seed, 6)
    canonical = canonical_subject(case.subject)
    try:
        net = Network(canonical.subject.classifier.module, case.subject.classifier.input_shape, CPU)
    except IncompatibleError as error:
        assert "no linear bounds for" in str(error)  # noqa: PT017
        return
    epsilons = case.near * torch.tensor([1.0, 1.1, 0.3, 0.6, 0.8, 1.3])
    region, data = BallRegions.around(case.subject.dataset.inputs, case.norm, epsilons, CPU), case.subject.dataset
    goals = torch.full((6,), 1e-5)
    found = decide(
        net, region, data.targets, goals, lambda p, _: torch.zeros(len(p), dtype=torch.bool), LIMITS, lambda: False
    )
    least = case.least(epsilons)
    below = least < found.bounds * canonical.unit - case.rounding
    wrong = (below | (found.verified[:, None] & (least < 0))).any(1)
    assert not wrong.any(), (case.norm, epsilons[wrong], least[wrong], found.bounds[wrong] * canonical.unit)
    # What holds inside in these balls holds in smaller ones, and all that follows from it.
    smaller = BallRegions.around(case.subject.dataset.inputs, case.norm, 0.8 * epsilons, CPU)
    again = decide(
        net, smaller, data.targets, goals, lambda p, _: torch.zeros(len(p), dtype=torch.bool), LIMITS, lambda: False,
        found.inner,
    )  # fmt: skip
    least = case.least(0.8 * epsilons)
    below = least < again.bounds * canonical.unit - case.rounding
    assert not below.any(), (case.norm, epsilons, least[below], again.bounds[below] * canonical.unit)
    for i, layers in again.inner.items():
        for (low, up), (low_before, up_before) in zip(layers, found.inner.get(i, layers), strict=True):
            assert (low >= low_before - 1e-6 * (1 + low_before.abs())).all()
            assert (up <= up_before + 1e-6 * (1 + up_before.abs())).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_point_of_a_ball_lies_below_the_bounds_of_auto_lirpa(seed):
    case = Case(seed, 3)
    epsilon = float(f"{case.near:.4g}")
    least = case.least(epsilon).amin(1)
    for method in METHODS[case.norm]:
        try:
            found = assess("v", entry(method), budget(epsilon, case.norm), case.subject).data
        except IncompatibleError as error:
            assert "has no bound for" in str(error)  # noqa: PT017
            continue
        wrong = (least < found["lower_margins"] - case.rounding) | (
            (found["verdicts"] == Verdict.VERIFIED) & (least < 0)
        )
        assert not wrong.any(), (method, case.norm, epsilon, least[wrong], found["lower_margins"][wrong])
