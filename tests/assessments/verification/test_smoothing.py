"""Randomised smoothing: the analytic certificate of a linear model, Cohen's numbers, and a run that is killed."""

import math

import pytest
import torch
from balls import budget, entry, first, subject_with
from scipy.stats import norm
from torch import nn

from windtunnel.assessments.verification import smoothing
from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.smoothing import (
    certify,
    looks_of,
    lower_confidence_bound,
    radius_of,
    smoothing_metrics,
)
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.params.verification import Smoothing

L2 = budget(0.2, Norm.L2)


def smoothed(**params):
    return entry("smoothing", params={"n0": 50, "n": 1000, "sigma": 0.25, **params})


def test_the_bound_and_the_largest_radius_are_those_of_the_paper():
    # Cohen et al. 2019, section 3.2.2: with n = 100,000 and alpha = .001 no radius exceeds about 3.8 sigma.
    assert radius_of(100_000, 100_000, Smoothing(sigma=1.0)) == pytest.approx(norm.ppf(0.001 ** (1 / 100_000)))
    assert radius_of(100_000, 100_000, Smoothing(sigma=1.0)) == pytest.approx(3.8, abs=0.02)
    assert lower_confidence_bound(0, 100, 0.001) == 0
    assert radius_of(500, 1000, Smoothing()) < 0  # half of the votes certify nothing


def test_a_linear_model_is_certified_up_to_its_true_radius_but_no_further():
    """Smoothing leaves a linear classifier of two classes as it is, so the true radius is the distance to its plane."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 2)
    subject = subject_with(nn.Sequential(nn.Flatten(), layer), torch.rand(12, 1, 4, 4), 2)
    w, b = layer.weight[1] - layer.weight[0], layer.bias[1] - layer.bias[0]
    true = ((subject.dataset.inputs.flatten(1) @ w + b).abs() / w.norm()).detach()
    radii = assess("s", smoothed(n=20_000), L2, subject).data["certified_radius"]
    assert (radii <= true).all()
    within = true < 0.6
    assert (radii[within] > true[within] - 0.03).all()


def test_a_point_on_the_boundary_abstains():
    layer = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1, 0, 0], [-1.0, 1, 0, 0]]))
    subject = subject_with(nn.Sequential(nn.Flatten(), layer), torch.full((3, 1, 2, 2), 0.5), 2)
    result = assess("s", smoothed(), L2, subject)
    assert (result.data["smoothed_predictions"] == -1).all()
    assert (result.data["certified_radius"] == 0).all()
    assert result.metrics["abstain_rate"] == 1
    assert result.metrics["certified_curve"][0] == 0


def test_the_certificates_are_probabilistic_of_another_model_and_say_so(digits_subject):
    result = assess("s", smoothed(), L2, first(digits_subject, 5))
    (caveat,) = [c for c in result.caveats if c.code == "probabilistic_certificate"]
    assert "with probability 0.999" in caveat.text
    assert "not count in the sandwich" in caveat.text
    assert "few_copies" in [c.code for c in result.caveats]
    beyond = assess("s", smoothed(sigma=0.05), L2, first(digits_subject, 2))
    assert "vacuous" in [c.code for c in beyond.caveats]


def test_metrics_verdicts_and_radii_are_recomputed_from_the_tensors_alone(digits_subject):
    subject, given = first(digits_subject, 12), Smoothing(n0=50, n=1000, sigma=0.25)
    result = assess("s", smoothed(), L2, subject)
    data = result.data
    assert (data["copies"] == given.n).all()
    radii = torch.tensor([max(0.0, radius_of(int(c), given.n, given)) for c in data["top_counts"]])
    assert torch.equal(radii, data["certified_radius"])
    verified = (radii >= 0.2) & (data["smoothed_predictions"] == subject.dataset.targets)
    assert torch.equal(verified, data["verdicts"] == Verdict.VERIFIED)
    assert int(verified.sum()) > 0
    assert smoothing_metrics(data, given) == result.metrics
    acr = float((radii.double() * (data["smoothed_predictions"] == subject.dataset.targets)).mean())
    assert math.isclose(result.metrics["average_certified_radius"], acr)


def test_a_killed_run_continues_where_it_stopped_and_ends_as_if_it_had_not(digits_subject, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subject = first(digits_subject, 6)
    whole = assess("whole", smoothed(), L2, subject).data
    asked = []

    def killed(classifier, x, given, seed, epsilon):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(seed)
        return certify(classifier, x, given, seed, epsilon)

    monkeypatch.setattr(smoothing, "certify", killed)
    with pytest.raises(KeyboardInterrupt):
        assess("cut", smoothed(), L2, subject)
    asked.clear()
    monkeypatch.setattr(smoothing, "certify", lambda *given: asked.append(given[3]) or certify(*given))
    rest = assess("cut", smoothed(), L2, subject).data
    assert len(asked) == 3
    uninterrupted = assess("cut", smoothed(), L2, subject).data
    for key in ("certified_radius", "smoothed_predictions", "top_counts"):
        assert torch.equal(rest[key], uninterrupted[key])
    assert not torch.equal(rest["top_counts"], whole["top_counts"])  # another name, another seed
    assert not list(tmp_path.rglob("*.pt"))


def test_any_model_with_a_forward_pass_will_do(digits_subject):
    class NoGradients(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                return digits_subject.classifier.module(x)

    subject = first(digits_subject, 3)
    other = subject_with(NoGradients(), subject.dataset.inputs, 10, subject.dataset.targets)
    verdicts = assess("s", smoothed(), L2, other).data["verdicts"]
    assert torch.equal(verdicts, assess("s", smoothed(), L2, subject).data["verdicts"])


@pytest.mark.parametrize("n", [1, 99, 100, 1000, 10_000])
def test_the_looks_share_alpha_and_end_with_n(n):
    looks = looks_of(Smoothing(n=n, sequential=True))
    assert sum(looks.values()) == pytest.approx(0.001)
    assert list(looks) == sorted(looks)
    assert list(looks)[-1] == n
    assert looks_of(Smoothing(n=n)) == {n: 0.001}


def test_a_sequential_run_decides_the_same_with_fewer_copies(digits_subject):
    subject = first(digits_subject, 12)
    fixed = assess("s", smoothed(), L2, subject)
    early = assess("s", smoothed(sequential=True), L2, subject)
    assert torch.equal(early.data["verdicts"], fixed.data["verdicts"])
    assert torch.equal(early.data["smoothed_predictions"], fixed.data["smoothed_predictions"])
    assert early.metrics["copies_used"] < 12 * 1000 / 2
    assert fixed.metrics["copies_used"] == 12 * 1000
    radii = [radius_of(int(c), int(n), Smoothing(n=1000, sequential=True)) for c, n in counts(early.data)]
    assert early.data["certified_radius"].tolist() == pytest.approx([max(0.0, radius) for radius in radii])
    assert "radius_up_to_budget" in [caveat.code for caveat in early.caveats]


def counts(data):
    return zip(data["top_counts"], data["copies"], strict=True)


def test_a_certificate_of_a_sequential_run_is_wrong_at_most_as_often_as_alpha_says(monkeypatch):
    """The radius is above sigma * Phi^-1(chance) in at most alpha of 600 runs whose epsilon is the true radius."""
    chance = 0.84
    generator = torch.Generator().manual_seed(0)

    def drawn(_model, _x, n, _sigma, _generator):
        return torch.tensor([int(torch.rand(n, generator=generator).lt(chance).sum())])

    monkeypatch.setattr(smoothing, "noisy_counts", drawn)
    given = Smoothing(n=800, alpha=0.05, sigma=1.0, sequential=True)
    found = [certify(None, None, given, 0, float(norm.ppf(chance)))[1:] for _ in range(600)]
    wrong = sum(radius_of(*counts, given) > norm.ppf(chance) for counts in found)
    assert wrong / 600 < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
    assert wrong > 0  # the bounds are no wider than they need be
