"""Branch and bound as an algorithm and as a step: what it decides holds, and its limits are of work."""

import pytest
import torch
from balls import Arctangent, budget, entry, first, subject_with
from torch import nn

from windtunnel.assessments.verification.assess import assess
from windtunnel.assessments.verification.preflight import preflight
from windtunnel.core.contracts import Norm, Verdict
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.params.verification import UNLIMITED_DOMAINS

SEARCH = entry("branch-and-bound")
DECIDED = {int(Verdict.VERIFIED), int(Verdict.FALSIFIED)}


def test_it_decides_every_sample_of_a_small_network_and_its_examples_are_misclassified(mlp_subject):
    subject = first(mlp_subject, 12)
    result = assess("v", SEARCH, budget(0.06), subject)
    verdicts = result.data["verdicts"]
    assert set(verdicts.tolist()) == DECIDED
    assert "branch-and-bound" in result.metrics["decided_by"]
    broken = verdicts == Verdict.FALSIFIED
    assert (result.data["perturbed_predictions"][broken] != subject.dataset.targets[broken]).all()
    assert (result.data["perturbation_distance"][broken] <= 0.06 + 1e-6).all()


@pytest.mark.slow
def test_it_contradicts_neither_crown_nor_the_attack_and_proves_what_crown_proves(digits_subject):
    subject = first(digits_subject, 40)
    verdicts = assess("v", SEARCH, budget(0.05), subject).data["verdicts"]
    crown = assess("v", entry("crown"), budget(0.05), subject).data["verdicts"] == Verdict.VERIFIED
    attacked = assess("v", entry("cascade", steps=["attack"]), budget(0.05), subject).data["verdicts"]
    assert (verdicts[crown] == Verdict.VERIFIED).all()
    assert not ((verdicts == Verdict.VERIFIED) & (attacked == Verdict.FALSIFIED)).any()
    assert (verdicts == Verdict.VERIFIED).sum() > crown.sum()


def test_its_limit_is_of_work_so_that_two_runs_agree_and_it_is_said(mlp_subject):
    subject = first(mlp_subject, 6)
    given = entry("branch-and-bound", params={"domains": 2})
    one, two = (assess("v", given, budget(0.12), subject) for _ in range(2))
    for key in ("verdicts", "lower_margins", "subdomains", "decided_by"):
        assert torch.equal(one.data[key].nan_to_num(), two.data[key].nan_to_num())
    left = one.data["verdicts"] == Verdict.UNKNOWN
    assert left.any()
    assert not one.data["timed_out"].any()
    (said,) = [c for c in one.caveats if c.code == "work_limit"]
    assert len(said.samples) == left.sum()


def test_a_time_out_is_kept_and_said_where_it_is_asked_for(mlp_subject):
    subject = first(mlp_subject, 4)
    result = assess("v", entry("branch-and-bound", timeout=1e-9), budget(0.09), subject)
    left = result.data["verdicts"] == Verdict.UNKNOWN
    assert torch.equal(result.data["timed_out"], left)
    assert "time_out" in [c.code for c in result.caveats]


@pytest.mark.parametrize(("norm", "epsilon"), [(Norm.L2, 0.3), (Norm.L1, 1.0)])
def test_l2_and_l1_balls_are_searched_too(mlp_subject, norm, epsilon):
    subject = first(mlp_subject, 6)
    name = f"-{norm.value.lower()}"
    found = assess("v", entry(f"branch-and-bound{name}", params={"domains": 100}), budget(epsilon, norm), subject)
    crown = assess("v", entry(f"crown{name}"), budget(epsilon, norm), subject)
    verified, known = (r.data["verdicts"] == Verdict.VERIFIED for r in (found, crown))
    assert (known <= verified).all()
    assert verified.any()


def test_wrong_parameters_and_models_without_bounds_are_refused_in_one_line(digits_subject):
    dataset, classifier = digits_subject.dataset, digits_subject.classifier
    with pytest.raises(UserError, match="Did you mean 'domains'"):
        preflight("v", entry("branch-and-bound", params={"domain": 3}), budget(0.1), classifier, dataset)
    waves = nn.Sequential(nn.Flatten(), Arctangent(), nn.Linear(64, 10))
    subject = subject_with(waves, dataset.inputs[:3], 10)
    with pytest.raises(IncompatibleError, match=r"^v: branch-and-bound has no linear bounds for atan") as caught:
        preflight("v", SEARCH, budget(0.1), subject.classifier, dataset)
    assert "\n" not in str(caught.value)


def test_in_a_cascade_it_gives_way_to_alpha_crown_where_it_has_no_bounds():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), Arctangent(), nn.Linear(8, 3))
    subject = subject_with(module, torch.rand(3, 1, 4, 4), 3)
    result = assess("v", entry("cascade", steps=["branch-and-bound"]), budget(0.001), subject)
    (said,) = [c for c in result.caveats if c.code == "weaker_method" and "branch-and-bound" in c.text]
    assert "atan" in said.text


@pytest.mark.parametrize(
    ("timeout", "domains", "limit"), [(None, None, 20_000), (None, 5, 5), (60, 5, 5), (60, None, UNLIMITED_DOMAINS)]
)
def test_only_the_limits_that_the_user_wrote_end_a_search(timeout, domains, limit):
    given = {"timeout": timeout} if timeout else {}
    params = {"domains": domains} if domains else {}
    assert entry("branch-and-bound", params=params, **given).branch_and_bound.domains == limit
